"""What the programs in `train/` and `export/` share: common flags, readable errors, exit codes.

A program defines its flags at the top, has `main(argv)`, and `run()` that calls `program.run(main)`. Exit codes:

    0    done
    1    failed; the last line says why
    2    wrong flags or recipe
    66   a picture could not be read: mend or remove it
    70   the loss became infinite or not a number: change the recipe
    74   a checkpoint could not be written or read: make space, then start again
    75   stopped by SIGTERM or Ctrl-C after saving: start again to go on
"""

import os
import re
import sys
from collections.abc import Callable, Sequence

from absl import app, flags, logging
from ml_collections import config_flags

from keras_vit import distribute
from keras_vit import recipe as recipes

WRONG_USAGE = 2
WHERE_FROM = "(--verbosity=1 shows where this came from)"
HELP = "Pass --helpshort or --helpfull to see help on flags."


def define_config_flag() -> None:
    """Defines `--config`, a file of `train/configs/` with its overrides (`--config.optim.learning_rate=0.01`)."""
    config_flags.DEFINE_config_file("config", None, "Recipe, such as train/configs/digits.py.", lock_config=False)


def define_distribution_flags() -> None:
    """Defines `--distribute`, `--tpu` and `--virtual_devices`."""
    names = dict.fromkeys([*distribute.STRATEGIES, *distribute.JAX_STRATEGIES])
    flags.DEFINE_enum("distribute", "auto", list(names), "Devices to use; auto takes what there is.")
    flags.DEFINE_string("tpu", "local", "With --distribute=tpu: 'local', a TPU's name, or grpc://HOST:8470.")
    flags.DEFINE_integer("virtual_devices", 0, "Divide the CPU into so many devices, to try out several.", 0)


def recipe_from_flags() -> recipes.Recipe:
    """Returns the recipe of `--config` with its overrides, checked.

    Raises:
        ValueError: if a field is unknown, has the wrong type or is out of range, or `--config` is missing.
    """
    config = flags.FLAGS.config
    if config is None:
        raise ValueError("--config is missing. Give a recipe, such as --config=train/configs/digits.py")
    try:
        config.total_steps  # noqa: B018  any access to a file that could not be loaded says why
    except (OSError, AttributeError) as error:
        raise ValueError(f"--config could not be loaded: {error}") from error
    if not isinstance(config, recipes.Recipe):
        raise ValueError(f"get_config() in --config must return a keras_vit.recipe.Recipe. It returned: {config!r}")
    return recipes.check(config)


def run(main: Callable[[Sequence[str]], int | None]) -> None:
    """Parses the flags and runs a program's `main`; what a user can mend ends in one line instead of a traceback."""
    _check_package()
    logging.set_verbosity(logging.INFO)
    logging.use_absl_handler()
    logging.get_absl_handler().addFilter(
        lambda record: record.filename != "functional_saver.py"
    )  # TensorFlow's chatter
    _complete_help(main)
    app.run(lambda argv: _leave(_run_main(main, argv)), flags_parser=_parse_flags)


def _check_package() -> None:
    """Exit with an explanation if another project's `keras_vit` was installed over this one."""
    package = sys.modules["keras_vit"]
    if not hasattr(package, "create_model"):
        sys.exit(
            f"{package.__file__} belongs to another project (keras-vit), whose module has the same name as this one. "
            "Repair: pip uninstall keras-vit keras-vision-transformers, then install keras-vision-transformers again."
        )


def _leave(exit_code: int | None) -> None:
    """Ends a program that failed at once: an input pipeline that fails again and again in the background would
    otherwise wait for the interpreter, which waits for the pipeline.
    """
    if exit_code:
        logging.flush()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


def _complete_help(main: Callable) -> None:
    """Lets `--help` show the shared flags, and a program's own where an installed command started it."""
    program = sys.modules[main.__module__]
    for module in (sys.argv[0], main.__module__, __name__):
        for flag in flags.FLAGS.get_key_flags_for_module(module):
            flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)
    sys.modules["__main__"].__doc__ = program.__doc__


def _run_main(main: Callable, argv: Sequence[str]) -> int | None:
    from keras_vit.training.errors import TrainingError

    try:
        return main(argv)
    except TrainingError as error:
        logging.error("%s", error)
        return error.exit_code
    except (ValueError, FileNotFoundError, distribute.DevicesMissing) as error:
        logging.error("%s", error, exc_info=logging.vlog_is_on(1))
        logging.error(WHERE_FROM)
        return WRONG_USAGE


def _parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the command line; a wrong recipe or override is explained like any other wrong flag."""
    try:
        return flags.FLAGS(_find_recipes(argv))
    except flags.Error as error:
        message = _wrong_arguments(error) or str(error).replace("\n", "\n  ")
    except (KeyError, AttributeError, TypeError) as error:  # how ml_collections reports an unknown field
        message = _wrong_override(argv) or f"--config: {error}"
    except (OSError, ValueError) as error:
        message = str(error)
    sys.stderr.write(f"FATAL Flags parsing error:\n  {message}\n{HELP}\n")
    sys.exit(WRONG_USAGE)


def _find_recipes(argv: Sequence[str]) -> list[str]:
    """Returns the command line with `--config=digits` as the path of that recipe of this package.

    `train/configs/digits.py` means the same file where there is none of that name, outside of a checkout.
    """
    found = list(argv)
    for index, argument in enumerate(argv):
        if re.fullmatch("--?config", argument) and index + 1 < len(argv):
            found[index + 1] = _recipe_path(argv[index + 1])
        elif match := re.match("(--?config=)(.+)", argument):
            found[index] = match.group(1) + _recipe_path(match.group(2))
    return found


def _recipe_path(value: str) -> str:
    path, colon, arguments = value.partition(":")
    if os.path.isfile(path):
        return value
    package = os.path.dirname(os.path.abspath(__file__))
    for root in (package, os.path.dirname(package)):  # installed, and in a checkout
        candidate = os.path.join(root, "train", "configs", os.path.basename(path).removesuffix(".py") + ".py")
        if os.path.isfile(candidate):
            return candidate + colon + arguments
    return value


def _wrong_arguments(error: flags.Error) -> str | None:
    """Returns what a recipe says of its arguments, which ml_collections buries in a traceback; None of other errors."""
    flag, buried, _ = str(error).partition(": Error whilst parsing config file")
    if not buried:
        return None
    own = error.__context__.__context__
    if isinstance(own, ValueError):
        return f"{flag}: {own}"
    if isinstance(own, TypeError) and own.__traceback__.tb_next is None:  # get_config was not entered
        return f"{flag}: this recipe takes no arguments, nothing may stand behind a colon."
    return None  # a mistake in the recipe's file: the traceback tells where


def _wrong_override(argv: Sequence[str]) -> str | None:
    """Returns what is wrong with the first override of a field that recipes do not have."""
    for argument in argv:
        match = re.match(r"--?(?:no)?config\.([\w.]+)", argument)
        try:
            if match:
                recipes.get(recipes.Recipe(), match.group(1))
        except ValueError as error:
            return str(error)
    return None

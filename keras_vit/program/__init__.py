"""Common parts of the programs in `train/` and `export/`: flags, readable errors, exit codes.

A program defines its flags at the top, has `main(argv)`, and `run()` that calls `program.run(main)`. Exit codes:

    0    done
    1    failed; the last lines say why
    2    wrong flags, recipe, file or environment: correct it, a restart alone does not help
    66   an image could not be read: repair or remove it
    70   the loss became infinite or not a number: change the recipe
    74   a file could not be written: free some space, then start again
    75   stopped by SIGTERM or Ctrl-C, with everything saved: start again to resume
    130  stopped by Ctrl-C at once (by the second one, where the first one saves)
"""

import os
import re
import sys
from collections.abc import Callable, Sequence

from absl import app, flags, logging

from keras_vit import distribute
from keras_vit import recipe as recipes
from keras_vit.program import ending, recipe_file
from keras_vit.program.ending import WHERE_FROM, WRONG_USAGE

__all__ = [
    "HELP",
    "WHERE_FROM",
    "WRONG_USAGE",
    "define_config_flag",
    "define_distribution_flags",
    "recipe_from_flags",
    "run",
]

HELP = "Pass --helpshort or --helpfull to see help on flags."


def define_config_flag() -> None:
    """Define `--config`, a recipe file with its overrides (`--config.optim.learning_rate=0.01`)."""
    flags.DEFINE_string("config", None, "Recipe, such as train/configs/digits.py, or just digits.")
    flags.DEFINE_multi_string("override", [], "FIELD=VALUE, the same as --config.FIELD=VALUE.")


def define_distribution_flags() -> None:
    """Define `--distribute`, `--tpu` and `--virtual_devices`."""
    names = dict.fromkeys([*distribute.STRATEGIES, *distribute.JAX_STRATEGIES])
    flags.DEFINE_enum("distribute", "auto", list(names), "Devices to use; auto takes what the machine has.")
    flags.DEFINE_string("tpu", "local", "With --distribute=tpu: 'local', a TPU's name, or grpc://HOST:8470.")
    flags.DEFINE_integer("virtual_devices", 0, "Split the CPU into this many devices, to try out several.", 0)


def recipe_from_flags() -> recipes.Recipe:
    """Return the recipe of `--config` with its overrides, checked.

    Raises:
        ValueError: If `--config` is missing or wrong, or a field is unknown, of the wrong type or out of range.
    """
    if not flags.FLAGS.config:
        raise ValueError("--config is missing. Give a recipe, such as --config=train/configs/digits.py")
    recipe = recipe_file.load(flags.FLAGS.config)
    for override in flags.FLAGS.override:
        field, _, text = override.partition("=")
        recipe = recipes.override(recipe, field, text)
    return recipes.check(recipe)


def run(main: Callable[[Sequence[str]], int | None]) -> None:
    """Parse the flags, run a program's `main`, and end the process with its exit code.

    An error that a user can correct is printed in one line, any other with its traceback. After an error the process
    ends at once, whatever its threads still do: an input pipeline that fails over and over in the background would
    otherwise keep it alive.
    """
    _check_package()
    logging.set_verbosity(logging.INFO)
    logging.use_absl_handler()
    logging.get_absl_handler().addFilter(
        lambda record: record.filename != "functional_saver.py"
    )  # TensorFlow's chatter
    _complete_help(main)
    exit_code = 0
    try:
        app.run(main, flags_parser=_parse_flags)  # ends with SystemExit
    except BaseException as error:  # noqa: BLE001  whatever it is, the process must end
        exit_code = ending.report(error)
    if exit_code:
        logging.flush()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


def _check_package() -> None:
    """Exit with an explanation if another project's `keras_vit` was installed over this one."""
    package = sys.modules["keras_vit"]
    if not hasattr(package, "create_model"):
        sys.exit(
            f"{package.__file__} belongs to another project (keras-vit), whose module has the same name as this one. "
            "Repair: pip uninstall keras-vit keras-vision-transformers, then install keras-vision-transformers again."
        )


def _complete_help(main: Callable) -> None:
    """Let `--help` show the shared flags, and a program's own where an installed command started it."""
    module = sys.modules[main.__module__]
    for name in (sys.argv[0], main.__module__, __name__):
        for flag in flags.FLAGS.get_key_flags_for_module(name):
            flags.FLAGS.register_key_flag_for_module(sys.argv[0], flag)
    sys.modules["__main__"].__doc__ = module.__doc__


def _parse_flags(argv: Sequence[str]) -> list[str]:
    """Parse the command line; a wrong flag ends the program like any other wrong usage."""
    try:
        return flags.FLAGS(_rewrite_overrides(argv))
    except flags.Error as error:
        sys.stderr.write(f"FATAL Flags parsing error:\n  {str(error).replace(chr(10), chr(10) + '  ')}\n{HELP}\n")
        sys.exit(WRONG_USAGE)


def _rewrite_overrides(argv: Sequence[str]) -> list[str]:
    """Return the command line with `--config.FIELD=VALUE` as `--override=FIELD=VALUE`.

    Like other absl flags, an override may be written as `--config.FIELD VALUE`, and one of a bool as `--config.FIELD`
    or `--noconfig.FIELD`.
    """
    rewritten, rest = [], list(argv)
    while rest and rest[0] != "--":
        argument = rest.pop(0)
        match = re.fullmatch(r"--?(no)?config\.([\w.]+)(?:=(.*))?", argument, re.DOTALL)
        if not match:
            rewritten.append(argument)
            continue
        negated, field, value = match.groups()
        if value is None:
            follows = bool(rest) and not negated and re.match(r"-?[\w.(\[]", rest[0])
            value = rest.pop(0) if follows else str(not negated)
        rewritten.append(f"--override={field}={value}")
    return rewritten + rest

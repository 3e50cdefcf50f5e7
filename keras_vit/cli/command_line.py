"""Start of a program: parsing and early checks of flags, help, and imports after the flags are parsed."""

import contextlib
import itertools
import os
import re
import sys
from collections.abc import Iterator, Sequence

from absl import flags, logging

from keras_vit.cli import common_flags, exit_codes
from keras_vit.runs import recipe_file
from keras_vit.training import chosen_recipe
from keras_vit.util import foreign_names, logs, source_specs, storage
from keras_vit.util.progress import Progress

HELP = "--help lists the flags."
_HELP_FLAGS = ("-h", "-help", "--help", "-helpshort", "--helpshort", "-helpfull", "--helpfull")
_remaining: list[str] | None = None


@contextlib.contextmanager
def imports(name: str, backend: str | None = None) -> Iterator[None]:
    """Parse the flags before the imports of a program, so that help and errors of flags appear at once.

    Args:
        name: The program's `__name__`. Nothing happens if the program is imported instead of run.
        backend: Keras backend that the program needs; it overrides `KERAS_BACKEND`. None keeps the user's backend.

    Example:
    ```python
    flags.DEFINE_string("model", None, "Run directory.")
    with cli.imports(__name__):
        from keras_vit import training
    ```
    """
    if name != "__main__":
        yield
        return
    try:
        arguments = parsed_arguments()
        if not logging.vlog_is_on(1):
            logs.begin()
        check_early(arguments[1:])
        if backend is not None:
            os.environ["KERAS_BACKEND"] = backend
        with Progress("Starting"):
            yield
            if "keras" in sys.modules:
                import keras_vit.api  # noqa: F401  registers the layers of saved models
    except BaseException as error:  # noqa: BLE001
        exit_codes.end(exit_codes.report(error))


def parsed_arguments() -> list[str]:
    """Parse the command line once and return the arguments that are not flags. Print the help and exit on --help."""
    global _remaining
    if _remaining is None:
        if any(argument in _HELP_FLAGS for argument in sys.argv[1:]):
            full = any("full" in argument for argument in sys.argv[1:])
            sys.stdout.write(help_text(sys.modules["__main__"].__doc__ or "", full))
            sys.exit(0)
        logging.set_verbosity(logging.INFO)
        _remaining = parse(sys.argv)
        if "list_recipes" in flags.FLAGS and flags.FLAGS.list_recipes:
            sys.stdout.write(recipe_file.table())
            sys.exit(0)
    return _remaining


def parse(argv: Sequence[str]) -> list[str]:
    """Parse a command line. A wrong flag ends the program with the exit code for wrong usage."""
    try:
        return flags.FLAGS(_rewrite_overrides(argv))
    except flags.Error as error:
        text = f"{str(error).rstrip('.')}."
        if isinstance(error, flags.UnrecognizedFlagError):
            text = _unknown_flag(error.flagvalue)
        sys.stderr.write(f"error: {text} {HELP}\n")
        sys.exit(exit_codes.WRONG_USAGE)


def check_early(arguments: Sequence[str]) -> None:
    """Check the parsed flags, and the other arguments of a program, without an import of Keras, which takes seconds."""
    options = flags.FLAGS
    given = list(itertools.takewhile(lambda argument: not argument.startswith("-"), arguments))
    if "submit" in options:  # the files of a job may be on other machines
        return
    if "override" in options:
        choices = common_flags.choices_from_flags(given)
        if choices.time is not None:
            chosen_recipe.seconds_of(choices.time)
        if choices.config and not storage.is_bucket_url(choices.config) and not os.path.isfile(choices.config):
            recipe_file.find(choices.config.partition(":")[0])
        for name in (choices.model, choices.weights):
            if name and os.sep in name:
                check_weights(name)
    if "data" in options and (data := common_flags.data_argument(given)):
        is_folder = "override" in options and not options.config and ":" not in data
        check_data(f"folder:{data}" if is_folder else data)
    if "model" in options and "preprocess" in options:
        if not options.model and "artifacts" not in options and "splits" not in options:
            raise ValueError("--model is missing: the directory of a run, a .keras file, a checkpoint or an artifact.")
        if options.model:
            check_weights(options.model)


def check_data(spec: str) -> None:
    """Raise an error if the path of a data set does not exist."""
    kind, location, _ = source_specs.parts(spec)
    if kind in source_specs.KINDS and location and not source_specs.exists(spec):
        raise FileNotFoundError(f"There is no file or folder {location!r}.")


def check_weights(name: str) -> None:
    """Raise an error if weights have neither a known name nor an existing path."""
    from keras_vit import zoo  # imports NumPy
    from keras_vit.zoo import variants

    if name not in variants.list_models():
        zoo.parse_weights_name(name)


def help_text(doc: str, full: bool = False) -> str:
    """Return the help of the running program. With `full`, the help also lists the flags of other packages."""
    own = "\n".join(map(_describe, flags.FLAGS.get_key_flags_for_module(sys.argv[0])))
    own += "\n  --verbosity=1: Also show the output of TensorFlow and converters."
    return f"{doc.strip()}\n\nflags:\n{flags.FLAGS.get_help() if full else own}\n"


def _describe(flag: flags.Flag) -> str:
    """Return the help of a flag. absl would sort the flags by name, instead of in the order of their definitions."""
    is_given = flag.default_as_str not in (None, "'false'", "'[]'")
    details = [f"default: {flag.default_as_str}"] if is_given else []
    details += [flag.parser.syntactic_help] if flag.parser.syntactic_help else []
    purpose = (flag.help or "").partition(";\n")[0]  # without the remark of absl that a flag may be repeated
    text = f"--{'[no]' if flag.boolean else ''}{flag.name}: {purpose}" + "".join(f" ({detail})" for detail in details)
    return flags.text_wrap(text, indent="      ", firstline_indent="  ")


def _unknown_flag(argument: str) -> str:
    """Return a message about an unknown flag, with the flag or the field of the recipe to use instead."""
    from keras_vit.util import checks  # imports NumPy

    known = flags.FLAGS
    name, _, value = argument.lstrip("-").partition("=")
    fields, advice = foreign_names.fields_like(name)
    named = [flag for flag in map(foreign_names.flag_of, fields) if flag in known]
    if not named and "override" in known:
        named = [f"config.{field}" for field in fields if not field.startswith("--")]
    if advice and all(flag in known for flag in re.findall(r"--(\w+)", advice)):
        hint = f" {advice}"
    elif named:
        typed = [f"--{flag}={value or 'VALUE'}" for flag in named]
        hint = f" Type {' or '.join(typed)}."
    else:
        spellings = {last: f"config.{field}" for last, field in foreign_names.BY_LAST_COMPONENT.items()}
        spellings = {**(spellings if "override" in known else {}), **{flag: flag for flag in known}}
        hint = checks.did_you_mean(f"--{spellings[word]}" for word in checks.closest(name, spellings, 0.7))
    return f"There is no flag --{name}.{hint}"


def _rewrite_overrides(argv: Sequence[str]) -> list[str]:
    """Return the command line with `--config.FIELD=VALUE` as `--override=FIELD=VALUE`."""
    for argument in argv:
        if re.fullmatch(r"--?(no)?config\.[^=]*", argument):
            raise flags.IllegalFlagValueError(f"{argument} needs a value: --config.FIELD=VALUE.")
    return [re.sub(r"^--?config\.", "--override=", argument) for argument in argv]

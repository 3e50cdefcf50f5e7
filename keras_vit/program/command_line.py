"""The start of a program: its flags, its help, and the imports that follow them."""

import contextlib
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence

from absl import flags, logging

from keras_vit.program import commands, exit_codes, logs, recipe_file

HELP = "--help lists the flags."
_HELP_FLAGS = ("-h", "-help", "--help", "-helpshort", "--helpshort", "-helpfull", "--helpfull")
_remaining: list[str] | None = None


@contextlib.contextmanager
def imports(name: str, backend: str | None = None) -> Iterator[None]:
    """Import what a program needs, after its flags were parsed: help and a wrong flag come at once.

    Args:
        name: The program's `__name__`. Nothing happens if it is imported, not run.
        backend: Keras backend that the program needs, whatever `KERAS_BACKEND` says; None for the user's.

    Example:
    ```python
    flags.DEFINE_string("model", None, "Run directory.")
    with program.imports(__name__):
        from keras_vit import training
    ```
    """
    if name != "__main__":
        yield
        return
    try:
        parsed_arguments()
        if not logging.vlog_is_on(1):
            logs.begin()
        if backend is not None:
            os.environ["KERAS_BACKEND"] = backend
        yield
        if "keras" in sys.modules:
            import keras_vit._api  # noqa: F401  the layers that saved models hold are registered
    except BaseException as error:  # noqa: BLE001
        exit_codes.end(exit_codes.report(error))


def parsed_arguments() -> list[str]:
    """Parse the command line, once, and return what is not a flag; show the help and end if it asks for it."""
    global _remaining
    if _remaining is None:
        _check_package()
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
    """Parse a command line; a wrong flag ends the program like any other wrong usage."""
    try:
        return flags.FLAGS(_rewrite_overrides(argv))
    except flags.Error as error:
        sys.stderr.write(f"error: {error} {HELP}\n")
        sys.exit(exit_codes.WRONG_USAGE)


def help_text(doc: str, full: bool = False) -> str:
    """Return the help of the running program. With `full`, flags of other packages are listed, too."""
    width = min(shutil.get_terminal_size().columns, 100)
    lines = [commands.words(doc).strip(), "", "flags:"]
    for module, defined in flags.FLAGS.flags_by_module_dict().items():
        if full or not module.startswith(("absl", "tensorflow")):
            for flag in defined:
                lines.append(f"  {_usage(flag)}")
                text = re.sub(r"^<\S+>: |;\s+repeat this option to specify a list of values$", "", flag.help or "")
                lines += textwrap.wrap(text, width, initial_indent=" " * 8, subsequent_indent=" " * 8)
    if not full:
        lines += [
            "  --verbosity=1",
            "        Also show what TensorFlow and converters print, and where errors came from.",
        ]
    return "\n".join(lines) + "\n"


def _check_package() -> None:
    """Exit with an explanation if another project's `keras_vit` was installed over this one."""
    package = sys.modules["keras_vit"]
    if not hasattr(package, "__getattr__"):
        sys.exit(
            f"{package.__file__} belongs to another project (keras-vit), whose module has the same name as this one. "
            "Repair: pip uninstall keras-vit keras-vision-transformers, then install keras-vision-transformers again."
        )


def _usage(flag: flags.Flag) -> str:
    if flag.boolean:
        return f"--[no]{flag.name}" if flag.default else f"--{flag.name}"
    choices = getattr(flag.parser, "enum_values", None)
    value = "|".join(choices) if choices else flag.name.upper().rpartition("_")[2]
    default = f" (default: {(flag.default_as_str or '').strip(chr(39))})" if flag.default else ""
    return f"--{flag.name}={value}{default}"


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

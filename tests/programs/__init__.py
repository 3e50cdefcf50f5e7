"""Programs, called in this process as `python -m` calls them in a separate process."""

import contextlib
import importlib
import io
import logging
import sys
import types

import absl.logging
from absl import flags
from absl.testing import flagsaver

from keras_vit.cli import command_line, exit_codes

OURS = ("train", "export", "keras_vit", "benchmarks", "tools")


def load(name: str) -> types.ModuleType:
    """Imports a program anew ("train.plan"), so that the flags are its own and no other program's."""
    for flag in set(flags.FLAGS):
        if flags.FLAGS.find_module_defining_flag(flag).partition(".")[0] in OURS:
            delattr(flags.FLAGS, flag)
    sys.modules.pop(name, None)
    program = importlib.import_module(name)
    flags.FLAGS.unparse_flags()
    flags.FLAGS([name])
    return program


def call(name: str, *arguments: object, **options: object) -> int | None:
    """Run `main` with a command line and flags set to `options`, without early checks; return its exit code."""
    main = load(name).main
    with flagsaver.flagsaver():
        flags.FLAGS.unparse_flags()
        remaining = flags.FLAGS([name, *map(str, arguments)])
        with flagsaver.flagsaver(**options):
            return main(remaining)


def run(name: str, *arguments: object) -> tuple[int, str]:
    """Run the program to its end, as `python -m` does, and return its exit code, output and log.

    Signals, threads that live on and the devices of a process need a separate process.
    """
    output = io.StringIO()
    handler, logger = logging.StreamHandler(output), logging.getLogger("absl")
    logger.addHandler(handler)
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), flagsaver.flagsaver():
            try:
                main = load(name).main
                absl.logging.set_verbosity(absl.logging.INFO)
                remaining = command_line.parse([name, *map(str, arguments)])
                command_line.check_early(remaining[1:])
                return main(remaining) or 0, output.getvalue()
            except BaseException as error:  # noqa: BLE001  as `cli.run` does
                return exit_codes.report(error), output.getvalue()
    finally:
        logger.removeHandler(handler)

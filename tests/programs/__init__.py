"""Programs, called in this process as `python -m` calls them in one of their own."""

import importlib
import sys
import types

from absl import flags
from absl.testing import flagsaver

OURS = ("train", "export", "keras_vit", "benchmarks")


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
    """Runs the program with a command line, with flags set to `options` beside it; returns its exit code."""
    main = load(name).main
    with flagsaver.flagsaver():
        flags.FLAGS.unparse_flags()
        remaining = flags.FLAGS([name, *map(str, arguments)])
        with flagsaver.flagsaver(**options):
            return main(remaining)

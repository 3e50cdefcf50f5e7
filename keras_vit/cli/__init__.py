"""Common parts of the programs in `train/` and `export/`: flags, readable errors, exit codes.

A program defines its flags, imports its modules within `cli.imports(__name__)`, and has a function `main(argv)`
that `cli.run(main)` calls. Exit codes:

    0    done
    1    failed; the last lines contain the reason
    2    wrong flags, recipe, file or environment: correct it before a restart
    66   an image could not be read: repair or remove it
    70   the loss became infinite or not a number, or several restarts produced no newer checkpoint
    74   a file could not be written: free some space, then start again
    75   stopped by SIGTERM or Ctrl-C, with everything saved, or another worker ended: start again to resume
    130  stopped by Ctrl-C (by the second Ctrl-C, if the first saves)
    143  stopped by SIGTERM (by the second SIGTERM, if the first saves)

A program ends within ten seconds after SIGTERM or Ctrl-C. A program that has to finish some work first logs the work
and the expected time. A second signal, at least two seconds after the first signal, ends it at once.

No module of this package imports TensorFlow, Keras or NumPy before the flags are parsed.
"""

import functools
from collections.abc import Callable, Sequence

from absl import app, flags

from keras_vit.cli import command_line, exit_codes
from keras_vit.cli.command_line import imports as imports
from keras_vit.cli.common_flags import default_workdir as default_workdir
from keras_vit.cli.common_flags import recipe_from_flags as recipe_from_flags
from keras_vit.cli.exit_codes import WHERE_FROM as WHERE_FROM
from keras_vit.cli.exit_codes import WRONG_USAGE as WRONG_USAGE
from keras_vit.cli.ray_run import run_on_ray as run_on_ray
from keras_vit.util import storage
from keras_vit.util.logs import terminal as terminal
from keras_vit.util.signals import StopRequest

Main = Callable[[Sequence[str]], int | None]


def published(flag: str, small: bool = True) -> Callable[[Main], Main]:
    """Return a decorator of `main` for a flag that names an output path, which may be a URL in a bucket.

    For a URL, `main` writes to a local copy, which is uploaded at the end. `small` is passed to
    `storage.written`; pass False for a program that continues an existing output.
    """

    def decorate(main: Main) -> Main:
        @functools.wraps(main)
        def in_copy(argv: Sequence[str]) -> int | None:
            with storage.written(flags.FLAGS[flag].value or "", f"--{flag}", small) as path:
                flags.FLAGS[flag].value = path or None
                return main(argv)

        return in_copy

    return decorate


def run(main: Main) -> None:
    """Parse the flags, run a program's `main`, and end the process with its exit code.

    An error that the user can correct is printed in one line; any other error is printed with its traceback. After an
    error the process ends at once, without waiting for its threads: an input pipeline that fails repeatedly in the
    background would otherwise keep the process alive.
    """
    exit_code = 0
    try:
        with StopRequest():
            app.run(main, flags_parser=lambda argv: command_line.parsed_arguments())  # ends with SystemExit
    except BaseException as error:  # noqa: BLE001  whatever it is, the process must end
        exit_code = exit_codes.report(error)
    if exit_code:
        exit_codes.end(exit_code)

"""Files that take seconds to create. The first pytest process that needs a file creates it for all processes."""

import contextlib
import fcntl
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator


def cached_directory(tmp_path_factory, name: str, make: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """Return a directory that `make` has filled. No test may change it.

    Args:
        tmp_path_factory: The fixture of pytest.
        name: Name of the directory, one for the whole run.
        make: Function that fills an empty directory. Where it fails, the next process tries again.
    """
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # the processes of a run have directories beside each other
    directory, done = base / name, base / f"{name}.done"
    with _locked(base / f"{name}.lock"):
        if not done.exists():
            shutil.rmtree(directory, ignore_errors=True)  # of a process that failed
            directory.mkdir()
            make(directory)
            done.touch()
    return directory


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

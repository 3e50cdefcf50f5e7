import subprocess
import sys

import pytest

from tests.cached_files import cached_directory
from tests.training.small_runs import ROOT


def test_files_are_created_only_once(tmp_path_factory):
    made = []

    def make(directory):
        made.append(directory)
        (directory / "file").write_text(str(len(made)))

    first, second = (cached_directory(tmp_path_factory, "something", make) for _ in range(2))
    assert first == second
    assert (second / "file").read_text() == "1"


def test_a_failed_attempt_is_repeated_in_an_empty_directory(tmp_path_factory):
    def fail(directory):
        (directory / "half").touch()
        raise OSError("disk full")

    def make(directory):
        assert not list(directory.iterdir())
        (directory / "whole").touch()

    with pytest.raises(OSError, match="disk full"):
        cached_directory(tmp_path_factory, "failed", fail)
    assert [path.name for path in cached_directory(tmp_path_factory, "failed", make).iterdir()] == ["whole"]


TESTS = """
import os
from tests.cached_files import cached_directory

def test_a(tmp_path_factory):
    name = os.environ["PYTEST_XDIST_WORKER"]
    directory = cached_directory(tmp_path_factory, "shared", lambda path: (path / name).touch())
    assert len(list(directory.iterdir())) == 1

test_b = test_c = test_d = test_a
"""


@pytest.mark.slow
def test_files_are_shared_between_processes(tmp_path):
    (tmp_path / "test_shared.py").write_text(TESTS)
    options = ["-q", "-n", "2", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", tmp_path, tmp_path]
    command = [sys.executable, "-m", "pytest", *map(str, options)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert "4 passed" in done.stdout, done.stdout + done.stderr

import subprocess
import sys

import pytest

from tests.made_once import made_once
from tests.training.worlds import ROOT


def test_files_are_created_only_once(tmp_path_factory):
    made = []

    def make(directory):
        made.append(directory)
        (directory / "file").write_text(str(len(made)))

    first, second = (made_once(tmp_path_factory, "something", make) for _ in range(2))
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
        made_once(tmp_path_factory, "failed", fail)
    assert [path.name for path in made_once(tmp_path_factory, "failed", make).iterdir()] == ["whole"]


TESTS = """
import os
from tests.made_once import made_once

def test_a(tmp_path_factory):
    directory = made_once(tmp_path_factory, "shared", lambda path: (path / os.environ["PYTEST_XDIST_WORKER"]).touch())
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

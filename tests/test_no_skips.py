"""`--no-skips`, which lets continuous integration notice tests that never run."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", pytest.param("1", marks=pytest.mark.slow)])
def test_no_skips_option_turns_skipped_tests_into_failures(tmp_path, workers):
    (tmp_path / "test_one.py").write_text(
        "import pytest\n\ndef test_runs(): pass\n\ndef test_needs_something(): pytest.importorskip('no_such_module')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "-p", "no:cacheprovider", "-p", "tests.no_skips"]
    run = [
        subprocess.run([*command, *flags, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
        for flags in ((), ("--no-skips",))
    ]
    assert [done.returncode for done in run] == [0, 1], run[1].stdout + run[1].stderr
    assert "test_needs_something" in run[1].stdout and "no_such_module" in run[1].stdout

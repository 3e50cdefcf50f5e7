"""Programs as subprocesses: the reason of a failure, in their output."""

import pytest

from keras_vit.experiments import processes


@pytest.mark.parametrize(
    ("output", "last"),
    [
        (b"", ""),
        (b"\n  \n", ""),
        (b"step 1\nstep 2\n", "step 2"),
        (b"step 1\nerror: no file\nerror: (--verbosity=1 shows where this came from)\n\n", "no file"),
        (b"W1126 12:34:56.789012 140255 main.py:12] odd\n", "odd"),
        (b"I1126 12:34:56.789012   14 main.py:120] 5 of 7] runs\n", "5 of 7] runs"),
        (b"ValueError: error: twice\n", "ValueError: error: twice"),
        (b"caf\xe9\n", "caf\ufffd"),
    ],
)
def test_the_last_line_without_advice_and_prefix(output, last, tmp_path):
    (tmp_path / "output.txt").write_bytes(output)
    assert processes.last_line(str(tmp_path / "output.txt")) == last

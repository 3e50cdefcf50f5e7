"""A missing or wrong argument of a command line is named in one line."""

import subprocess
import sys

import pytest

from tests.programs import call


def test_missing_arguments_are_named():
    with pytest.raises(ValueError, match="--model is missing"):
        call("train.predict", "a.png")
    with pytest.raises(ValueError, match="keras-vit predict"):
        call("train.predict", "--model=x")
    with pytest.raises(ValueError, match="--model.*--output"):
        call("export.saved_model", "--model=x")
    for program in ("export.tflite", "export.onnx", "export.openvino"):
        with pytest.raises(ValueError, match="--model.*--output"):
            call(program, "--output=x")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        call("train.evaluate", "--model=nowhere")


@pytest.mark.slow
@pytest.mark.parametrize("program", ["train.predict", "export.tflite"])
def test_what_a_user_can_mend_is_one_line(program):
    command = [
        sys.executable,
        "-m",
        program,
        "--model=/nowhere",
        *(["a.png"] if "predict" in program else ["--output=a"]),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "There is no model at '/nowhere'" in done.stderr
    assert "Traceback" not in done.stderr

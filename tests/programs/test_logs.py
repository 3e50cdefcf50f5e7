"""The terminal shows the program's lines; what other packages print is in the log."""

import os
import pathlib
import subprocess
import sys

import pytest
from absl import logging

import keras_vit
from keras_vit.util import logs

ROOT = pathlib.Path(__file__).parents[2]
CODE = """
import importlib.util, os, sys, warnings
sys.modules["__main__"].__file__ = "keras-vit"  # a program, which imports Keras where it needs it
spec = importlib.util.spec_from_file_location("logs", "keras_vit/util/logs.py")
output = importlib.util.module_from_spec(spec)
spec.loader.exec_module(output)
from absl import logging

from absl import flags; flags.FLAGS(['x'])
output.begin()
logging.set_verbosity(logging.INFO)
os.write(2, b"from C++\\n")
output.log_to(sys.argv[1])
os.write(2, b"from C++ later\\n")
logging.info("an own line")
logging.error("an own error")
foreign = "import logging, warnings; "
foreign += "logging.getLogger('httpx').info('a request'); logging.getLogger('httpx').warning('a lost connection'); "
foreign += "logging.getLogger('tf2onnx').error('a converter'); warnings.warn('a foreign warning')"
exec(compile(foreign, "/usr/lib/python3/site-packages/tf2onnx/__init__.py", "exec"))
warnings.warn("an own warning")
os.system("echo from a child >&2")
sys.stderr.write("an own text\\n")
print("a result")
os.abort()
"""


@pytest.mark.slow
def test_log_lines_of_other_packages_go_to_the_log_file(tmp_path):
    command = [sys.executable, "-c", CODE, str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    shown = done.stderr.splitlines()
    assert shown[:4] == ["an own line", "error: an own error", "warning: an own warning", "an own text"]
    assert "Fatal Python error: Aborted" in done.stderr, "a crash must not be silent"
    log = (tmp_path / "run" / "log.txt").read_text()
    for text in ("from C++\n", "from C++ later\n", "a converter", "a foreign warning", "from a child", "an own line"):
        assert text in log and (text.startswith("an own") or text not in done.stderr)
    assert "a lost connection" in log and "a request" not in log


@pytest.mark.parametrize("propagates", [True, False])
def test_lines_are_shown_within_the_block(propagates, capsys, monkeypatch):
    logger = logging.get_absl_logger()
    monkeypatch.setattr(logger, "propagate", propagates)
    before = [*logger.handlers], logger.level
    with pytest.raises(OSError), logs.shown():
        logging.info("within")
        raise OSError
    assert ([*logger.handlers], logger.level) == before and logger.propagate == propagates
    with logs.shown(enabled=False):
        logging.info("after")
    assert capsys.readouterr().err == "within\n"


@pytest.mark.parametrize(
    ("path", "is_ours"),
    [
        (keras_vit.__file__, True),
        (f"{os.path.dirname(keras_vit.__file__)}/training/loop.py", True),
        ("/home/me/recipe.py", True),
        ("/home/me/site-packages.py", True),
        ("/opt/lib/python3.12/site-packages/tensorflow/__init__.py", False),
        ("/usr/lib/python3/dist-packages/tensorflow.py", False),
        (f"{os.path.dirname(os.__file__)}/warnings.py", False),
    ],
)
def test_lines_of_this_package_and_of_the_user_are_shown(path, is_ours):
    assert logs.is_ours(path) == is_ours


def test_an_installed_package_is_known_by_its_folder(monkeypatch):
    monkeypatch.setattr(logs, "_PACKAGE", "/opt/site-packages/keras_vit")
    assert logs.is_ours("/opt/site-packages/keras_vit/a.py")
    assert not logs.is_ours("/opt/site-packages/keras_vit_extra/a.py")


@pytest.mark.slow
def test_names_of_files_need_not_be_utf8():
    """JSON reads the escape as Python's name of the file."""
    code = CODE.partition("logging.set_verbosity")[0] + "print(os.fsdecode(b'\\xff.png'))"
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, env=environment)
    assert done.stdout == b"\\udcff.png\n"

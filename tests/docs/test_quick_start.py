"""The commands of the README's quick start, as it shows them, with fewer steps."""

import glob
import os
import re
import shlex
import socket
import subprocess
import sys

import pytest

from keras_vit.cli import command_line, commands
from tests import programs
from tests.docs import pages

README = (pages.ROOT / "README.md").read_text(encoding="utf-8")
QUICK_START = next(block.code for block in pages.blocks(README) if "keras-vit sample-data" in block.code)
LINES = [shlex.split(line.rstrip(" &")) for line in QUICK_START.splitlines() if line.startswith("keras-vit ")]
COMMANDS = {words[1]: words[2:] for words in LINES}


def call(name, *more):
    """Run a command of the quick start in this process; return its exit code."""
    arguments = [path for word in COMMANDS[name] for path in (sorted(glob.glob(word))[:3] if "*" in word else [word])]
    main = programs.load(commands.PROGRAMS[name])
    return main.main(command_line.parse([name, *arguments, *more]))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder where the first two commands were run."""
    folder, before = tmp_path_factory.mktemp("quick_start"), os.getcwd()
    os.chdir(folder)
    try:
        assert not call("sample-data")
        assert not call("train", "--config.total_steps=10", "--config.eval_every=10", "--config.log_every=10")
    finally:
        os.chdir(before)
    return folder


def test_quick_start_is_short():
    assert len(QUICK_START.splitlines()) <= 12
    assert list(COMMANDS) == ["sample-data", "train", "evaluate", "visualize", "export", "serve", "client"]
    assert re.match(r"pip install '(keras-vision-transformers|\.)\[[\w,]+\]'\n", QUICK_START)


def test_first_screen_shows_purpose_image_and_commands():
    """A sentence, an image, `make demo`, `make test` and five lines to own images; `docs/README.md` is an index."""
    first = README.partition("\n## ")[0]
    sentence, image = first.split("\n\n")[1:3]
    assert sentence.count(". ") == 0 and image.startswith("![") and len(first.splitlines()) <= 40
    assert "make demo " in first and "make test " in first
    (own,) = [block.code for block in pages.blocks(first) if "keras-vit train" in block.code]
    assert len(own.splitlines()) == 5
    home = (pages.ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert own not in home and sentence not in home


@pytest.mark.slow
def test_quick_start_trains_and_evaluates(trained, monkeypatch, capsys):
    monkeypatch.chdir(trained)
    images = list((trained / "images").rglob("*.png"))
    assert len(images) == 1797
    assert (trained / "runs/digits/model.keras").is_file()
    assert not call("evaluate")
    assert "360" in capsys.readouterr().out


@pytest.mark.slow
def test_quick_start_writes_the_report(trained, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(trained)
    assert not call("visualize", "--num_images=2", "--distance_images=2", "--evaluated_images=8")
    assert (trained / "report/report.html").is_file()


@pytest.mark.slow
def test_quick_start_exports_and_serves(trained, monkeypatch, capsys):
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    monkeypatch.chdir(trained)
    assert not call("export", "--num_images=4", "--batch_sizes=")
    assert capsys.readouterr().out == "served/digits/1\n"
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(pages.ROOT)}
    serve = [sys.executable, "-m", "keras_vit", "serve", *COMMANDS["serve"], f"--port={port}"]
    server = subprocess.Popen(serve, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        shown = server.stderr.readline()  # no line of other packages before it
        while shown.startswith("Starting, "):  # on a slow machine
            shown = server.stderr.readline()
        assert shown.startswith("Serving at ") and f":{port}/v1/models/digits" in shown
        assert not call("client", f"--url=http://localhost:{port}")
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert capsys.readouterr().out.count("images/test/3/") == 3

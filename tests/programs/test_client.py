"""`export.client`, against a server in this process."""

import json
import socket
import types

import pytest
from absl import flags

from keras_vit.inference.opening import open_artifact
from keras_vit.tf_serving import client
from tests import tiny
from tests.programs import call
from tests.tf_serving import servers

pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'keras-vision-transformers[serving]'")


@pytest.fixture(scope="module")
def running(served):
    with servers.serving(str(served[1])) as found:
        yield found[1]


@pytest.fixture(scope="module")
def images():
    """Forty different images."""
    return [tiny.encode(image, "PNG") for image in tiny.arrays(40, seed=3)]


@pytest.fixture(scope="module")
def expected(served, images):
    artifact = open_artifact(str(served[1]))
    return artifact.run("serving_default", {"image_bytes": images})


@pytest.mark.slow
def test_the_clients_program(running, images, expected, tmp_path, capsys):
    for index in range(2):
        (tmp_path / f"{index}.png").write_bytes(images[index])
    (tmp_path / "bad.png").write_bytes(b"bad")
    arguments = (f"--url={running}", "--name=pets", f"{tmp_path}/*.png")
    assert call("export.client", "--json", *arguments) == 1  # one image cannot be read
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["predictions"][0]["label"] for answer in answers] == [
        labels[0].decode() for labels in expected["top_k_classes"][:2]
    ]
    assert call("export.client", f"--url={running}", "--name=cats", f"{tmp_path}/0.png") == 1


def test_a_server_that_does_not_answer(tmp_path, caplog, monkeypatch):
    (tmp_path / "0.png").write_bytes(b"")
    with socket.socket() as closed:
        closed.bind(("localhost", 0))  # nothing listens there
        url = f"http://localhost:{closed.getsockname()[1]}"
        with caplog.at_level("ERROR", logger="absl"):
            assert call("export.client", f"--url={url}", "--name=pets", "--timeout=0.1", f"{tmp_path}/0.png") == 1
    assert url in caplog.text and "still starting" in caplog.text
    pauses = []
    monkeypatch.setattr(client, "time", types.SimpleNamespace(monotonic=lambda: 0.0, sleep=pauses.append))
    monkeypatch.setattr(client, "random", types.SimpleNamespace(uniform=lambda *_: 1.0))
    assert call("export.client", f"--url={url}", "--name=pets", f"{tmp_path}/0.png") == 1
    assert sum(pauses) == pytest.approx(12.6)  # s
    assert "about 13 s" in flags.FLAGS["timeout"].help

"""`export.client`, against a server in this process."""

import socket
import types

import pytest
from absl import flags

from keras_vit import tf_serving
from tests.programs import call, load

pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'keras-vision-transformers[serving]'")


class Fake:
    """Replaces the client: the second image is unreadable."""

    def __init__(self, *places, **options):
        self.created = places, options

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def predict(self, contents, batch_size):
        calls.append((*self.created, contents, batch_size))
        prediction = tf_serving.ServedPrediction(["é", "b"], [0.75, 0.25], True)
        return [tf_serving.ServedPrediction([], [], False) if content == b"bad" else prediction for content in contents]


calls: list = []


def test_predictions_and_errors_are_printed_as_text(tmp_path, monkeypatch, capsys, caplog):
    program = load("export.client")
    monkeypatch.setattr(program, "Client", Fake)
    for name, content in (("0.png", b"good"), ("1.png", b"bad")):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "2.png").mkdir()
    paths = [f"{tmp_path}/{number}.png" for number in range(3)]
    monkeypatch.setattr(program.image_files, "find", lambda _: paths)
    program.flags.FLAGS(["client", "--url=http://x:1", "--name=pets", "--timeout=2", "--batch_size=3"])
    assert program.main(["client"]) == 1
    assert calls == [(("http://x:1", "pets"), {"timeout": 2.0, "retries": 6}, [b"good", b"bad"], 3)]
    assert capsys.readouterr().out.splitlines()[0] == paths[0]
    assert caplog.messages == [f"{paths[2]}: Is a directory", f"{paths[1]}: the server cannot read this image"]
    program.flags.FLAGS.unparse_flags()
    program.flags.FLAGS(["client", "--name=pets", f"--output={tmp_path}/masks", "--json"])
    with pytest.raises(ValueError, match="predicts masks. Received: a model of probabilities"):
        program.main(["client"])
    assert not (tmp_path / "masks").exists()
    paths[1:] = []
    program.flags.FLAGS["output"].value = None
    assert program.main(["client"]) == 0
    assert '"label": "é"' in capsys.readouterr().out


def test_server_that_does_not_respond_is_reported(tmp_path, caplog, monkeypatch):
    (tmp_path / "0.png").write_bytes(b"")
    with socket.socket() as closed:
        closed.bind(("localhost", 0))  # nothing listens there
        url = f"http://localhost:{closed.getsockname()[1]}"
        with caplog.at_level("ERROR", logger="absl"):
            assert call("export.client", f"--url={url}", "--name=pets", "--timeout=0.1", f"{tmp_path}/0.png") == 1
    assert url in caplog.text and "still starting" in caplog.text
    pauses = []
    monkeypatch.setattr(tf_serving, "time", types.SimpleNamespace(monotonic=lambda: 0.0, sleep=pauses.append))
    monkeypatch.setattr(tf_serving, "random", types.SimpleNamespace(uniform=lambda *_: 1.0))
    assert call("export.client", f"--url={url}", "--name=pets", f"{tmp_path}/0.png") == 1
    assert sum(pauses) == pytest.approx(12.6)  # s
    assert "about 13 s" in flags.FLAGS["timeout"].help

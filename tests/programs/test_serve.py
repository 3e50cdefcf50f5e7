"""`export.serve`: its port and its end."""

import concurrent.futures
import contextlib
import dataclasses
import os
import signal
import socket
import time

import pytest

from keras_vit import tf_serving
from tests import forked, selection, tiny
from tests.data import example_images
from tests.programs import call, load
from tests.tf_serving import servers

pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install 'keras-vision-transformers[serving]'")


@pytest.fixture(scope="module")
def base(served):
    return served[1]


@pytest.fixture(scope="module")
def running(base):
    with servers.serving(base) as found:
        yield found[1]


def test_model_name_follows_from_the_path(tmp_path):
    """The name of a model excludes the extension of a file, but includes a point in the name of a directory."""
    (tmp_path / "pets.v2").mkdir()
    (tmp_path / "pets.keras").write_bytes(b"")
    name_of = load("export.serve").name_of
    assert [name_of(f"{tmp_path}/{path}") for path in ("pets.v2/", "pets.keras")] == ["pets.v2", "pets"]
    assert name_of("ViT_S14:dinov2") == "ViT_S14-dinov2"  # in a URL, a colon ends the name of the model


@pytest.mark.slow
def test_examples_are_test_images_that_need_no_download(tmp_path):
    examples_of = load("export.serve").examples_of

    def found(source):
        return examples_of(dataclasses.replace(tiny.card(), recipe={"data": {"source": source, "eval_split": "test"}}))

    assert len(found("digits")) == 8 and all(image.startswith(b"\x89PNG") for image in found("digits").values())
    for source in ("tfds:mnist", "folder:gs://bucket/photos", "folder:missing", ""):
        assert found(source) == {}
    for split in ("train", "test"):
        example_images.folder(tmp_path / split, count=3)
    names = {f"{name}/{index}" for name in ("cat", "dog", "eel") for index in range(3)}
    shown = found(f"folder:{tmp_path}")  # files of several classes have the same names
    assert len(shown) == 8 and {name.partition(".")[0] for name in shown} < names


@pytest.fixture(scope="module")
def images():
    """Forty different images."""
    return [tiny.encode(image, "PNG") for image in tiny.arrays(40, seed=3)]


@pytest.mark.slow
def test_port_in_use_is_reported_in_one_line(base, running):
    port = running.rpartition(":")[2]
    with pytest.raises(ValueError, match=f"--port={port}"):
        call("export.serve", f"--model={base}", f"--port={port}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def process(base, *arguments, code=None):
    """The server's program in a separate process: (process, URL)."""
    port = free_port()
    module, first = ("-c", [code]) if code else ("export.serve", [])
    child = forked.Program(forked.ROOT, module, [*first, f"--model={base}", f"--port={port}", *arguments], os.environ)
    try:
        url = f"http://localhost:{port}"
        servers.wait_until(lambda: child.poll() is None and servers.get(f"{url}/v1/models/pets"), 120)
        yield child, url
    finally:
        child.kill()
        child.communicate()


@pytest.mark.slow
def test_sigterm_finishes_running_requests(base, images):
    with process(base) as (child, url), tf_serving.Client(url, "pets", timeout=240, retries=0) as asking:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = [pool.submit(asking.predict, images * 5, 200) for _ in range(8)]
            time.sleep(0.2)  # requests are under way; whether all of them is not what matters
            child.send_signal(signal.SIGTERM)
            finished = [answer.exception() is None for answer in answers]
        assert child.wait(timeout=60) == 0
        assert any(finished)
        for answer, done in zip(answers, finished, strict=True):
            if done:
                assert len(answer.result()) == 200
            else:  # sent too late: the connection is refused, not closed during the response
                assert isinstance(answer.exception(), ConnectionError)


# A request that is computed for ever.
STUCK = """
import runpy, sys, time
from keras_vit.inference.saved_model import SavedModelPredictor
SavedModelPredictor.run = lambda *_: time.sleep(600)
sys.argv[0] = "export/serve.py"
runpy.run_module("export.serve", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "stop",
    [
        (signal.SIGTERM,),
        pytest.param((signal.SIGTERM, signal.SIGTERM), marks=selection.EXHAUSTIVE),
        pytest.param((signal.SIGINT,), marks=selection.EXHAUSTIVE),
    ],
    ids=str,
)
def test_sigterm_ends_the_server_whatever_its_clients_do(base, stop):
    with process(base, "--grace_seconds=2", code=STUCK) as (child, url), contextlib.ExitStack() as stack:
        stack.enter_context(servers.slow_bodies(url, 10))
        for sent in (
            b"",
            b"GET /v1/models/pets HT",
            b"POST / HTTP/1.1\r\nHost: x\r\nX: ",
        ):  # idle, and heads that never end
            stack.enter_context(socket.create_connection(servers.address_of(url), timeout=30)).sendall(sent)
        stuck = stack.enter_context(socket.create_connection(servers.address_of(url), timeout=30))
        body = b'{"instances": ["a"]}'
        stuck.sendall(
            b"POST /v1/models/pets:predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        time.sleep(0.5)  # the request is under way
        for number in stop:
            child.send_signal(number)
        assert child.wait(timeout=60) == 0

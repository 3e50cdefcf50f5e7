"""A Hugging Face hub on this machine, with the part of its protocol that `huggingface_hub` needs."""

import contextlib
import hashlib
import http.server
import json
import threading

import pytest

from keras_vit.zoo import hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class LocalHub:
    """Repositories by name, as {file name: content}.

    Attributes:
        url: Value for `HF_ENDPOINT`.
        sent: Names of the files that were sent.
        listed: Revisions whose files were listed.
        gated: Names of the repositories whose license nobody has accepted.
        cut: Number of bytes after which the connection breaks; None for whole files.
        corrupted: Names of files that are sent with another last bit than their hash states.
    """

    def __init__(self):
        self.repositories, self.sent, self.listed, self.gated, self.corrupted, self.cut = {}, [], [], set(), set(), None
        self.url = ""

    def answer(self, handler):
        path = handler.path.partition("?")[0]
        parts = path.removeprefix("/api/models/").strip("/").split("/")
        name, rest = "/".join(parts[:2]), parts[2:]
        files = self.repositories.get(name)
        if files is None:
            return self.refuse(handler, 404, "RepoNotFound")
        if rest[0] in ("revision", "resolve") and rest[1] not in ("main", COMMIT):
            return self.refuse(handler, 404, "RevisionNotFound")
        if rest[0] == "resolve":
            if name in self.gated:  # whose list of files everybody may read
                return self.refuse(handler, 403, "GatedRepo")
            return self.send(handler, files[rest[2]], rest[2])
        self.listed += rest[1:2]
        entries = [{"type": "file", "path": file, "size": len(files[file]), **stated(files[file])} for file in files]
        listed = [{"rfilename": file} for file in files]
        content = entries if rest[0] == "tree" else {"id": name, "sha": COMMIT, "siblings": listed}
        return self.send(handler, json.dumps(content).encode())

    def send(self, handler, content, file=None):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.send_header("ETag", f'"{stated(content)["oid"]}"')
        handler.send_header("X-Repo-Commit", COMMIT)
        handler.end_headers()
        if handler.command == "GET":
            self.sent += [file] if file else []
            content = content[:-1] + bytes([content[-1] ^ 1]) if file in self.corrupted else content
            handler.wfile.write(content[: self.cut] if file and file.endswith(".safetensors") else content)

    def refuse(self, handler, status, code):
        handler.send_response(status)
        handler.send_header("X-Error-Code", code)
        handler.send_header("X-Error-Message", code)
        handler.send_header("Content-Length", "0")
        handler.end_headers()


def stated(content):
    """The hash of a file: that of a large one is its SHA-256, that of another its Git object."""
    is_large = len(content) > 20_000
    digest = getattr(hashlib, "sha256" if is_large else "sha1")(content).hexdigest()
    large = {"lfs": {"oid": digest, "size": len(content), "pointerSize": 130}} if is_large else {}
    return {"oid": digest, **large}


@contextlib.contextmanager
def serving():
    """Run a hub in a thread."""
    hub = LocalHub()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            hub.answer(self)

        do_HEAD = do_GET

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hub.url = f"http://127.0.0.1:{server.server_port}"
        yield hub
        server.shutdown()


@pytest.fixture
def local_hub(tmp_path, monkeypatch):
    """A hub without repositories, which this process uses, with an empty cache."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.delenv("KERAS_VIT_WEIGHTS_DIR", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True, raising=False)  # not in 0.30
    hub.fetch.cache_clear()
    with serving() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running
    hub.fetch.cache_clear()

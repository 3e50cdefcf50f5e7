"""Servers in this process, and requests to them."""

import contextlib
import functools
import http.client
import json
import socket
import threading
import time
import urllib.error
import urllib.request

from export.serving import served_model, server
from keras_vit import tf_serving
from keras_vit.inference import open_predictor


@functools.cache
def loaded(base):
    """The model of a directory, loaded and warmed up once for all servers of it."""
    model = served_model.ServedModel("pets", open_predictor(str(base)))
    model.warm_up()
    return model


@contextlib.contextmanager
def serving(base, **limits):
    """A server for the model in a directory: (model, URL)."""
    model = loaded(base)
    with serving_model(model, **limits) as url:
        yield model, url


@contextlib.contextmanager
def serving_model(model, **limits):
    """A server for a `ServedModel`: its URL."""
    rest_server = server.RestServer(model, limits=server.Limits(**limits))
    thread = threading.Thread(target=rest_server.run)
    thread.start()
    try:
        yield f"http://localhost:{rest_server.port}"
    finally:
        rest_server.stop()
        thread.join(60)
        assert not thread.is_alive()


def get(url):
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.loads(response.read())


def post(url, body, path="/v1/models/pets:predict"):
    """Status and parsed response of a request."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def refused(url):
    """Status of a request that may be refused with a text that is not JSON."""
    try:
        return urllib.request.urlopen(f"{url}/v1/models/pets", timeout=30).status
    except urllib.error.HTTPError as error:
        return error.code


def is_answering(url, images):
    with tf_serving.Client(url, "pets", retries=0) as asking:
        return asking.predict(images[:1])[0].valid


def address_of(url):
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def wait_until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError):
            if condition():
                return
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextlib.contextmanager
def slow_bodies(url, count, sent=b" ", length=100_000):
    """Clients that send the head of a request, some of its body, and then nothing."""
    with contextlib.ExitStack() as stack:
        connections = []
        for _ in range(count):
            connection = stack.enter_context(socket.create_connection(address_of(url), timeout=30))
            connection.sendall(
                b"POST /v1/models/pets:predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (length, sent)
            )
            connections.append(connection)
        yield connections

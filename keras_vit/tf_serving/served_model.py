"""Newest version of a model, as the development server serves it."""

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from keras_vit.exporting import warmup
from keras_vit.inference import Classifier
from keras_vit.inference.formats import list_versions
from keras_vit.inference.saved_model import SavedModelClassifier
from keras_vit.tf_serving import rest
from keras_vit.tf_serving.client import RequestError
from keras_vit.tf_serving.served_classifier import ServedClassifier

Servable = SavedModelClassifier | ServedClassifier


class ServedModel:
    """Newest version of a model, replaced when a newer one appears."""

    def __init__(self, name: str, base: str, classifier: Classifier | None = None):
        self.name = name
        self.base = base
        self._lock = threading.Condition()
        self._users: dict[Servable, int] = {}  # requests under way
        self._current: tuple[int, Servable] | None = None
        self._failed: dict[int, object] = {}  # version -> its files when loading failed
        self._is_fixed = classifier is not None
        if classifier is None:
            self.reload()
            self._served()
        else:
            self._replace(1, ServedClassifier(classifier))

    @property
    def version(self) -> int:
        """Version that is served."""
        return self._served()[0]

    @property
    def busy(self) -> bool:
        """Whether requests are under way."""
        with self._lock:
            return any(self._users.values())

    def reload(self) -> bool:
        """Load the newest version if it is not served yet; requests under way finish on the old one.

        Its warm-up requests run first. A version that cannot be loaded is logged once and tried again when its files
        change. The served version stays.
        """
        for version in () if self._is_fixed else reversed(list_versions(self.base)):
            if self._current and version == self._current[0]:
                return False
            artifact = self._load(version)
            if artifact is not None:
                self._replace(version, artifact)
                return True
        return False

    def _served(self) -> tuple[int, Servable]:
        if self._current is None:
            raise FileNotFoundError(
                f"Expected a version of the model that can be loaded, as {self.base}/1. There is none."
            )
        return self._current

    def _load(self, version: int) -> SavedModelClassifier | None:
        path = os.path.join(self.base, str(version))
        state = _state_of(path)
        if version in self._failed and self._failed[version] == state:
            return None
        try:
            artifact = _open_warm(path)
        except Exception as error:  # a version that is being copied can fail in any way
            if version not in self._failed:
                text = str(error).split("\n", 1)[0] or type(error).__name__
                logging.error("Version %d cannot be loaded: %s", version, text)
            self._failed[version] = state
            return None
        self._failed.pop(version, None)
        return artifact

    def _replace(self, version: int, artifact: Servable) -> None:
        with self._lock:
            previous, self._current = self._current, (version, artifact)
            self._users[artifact] = 0
            if previous:
                self._lock.wait_for(lambda: not self._users[previous[1]])
                del self._users[previous[1]]
        if previous:
            previous[1].close()
        logging.info("Serving %s version %d", self.name, version)

    @contextlib.contextmanager
    def use(self, name: str, version: int | None = None) -> Iterator[tuple[int, Servable]]:
        """Hold the served version for one request."""
        with self._lock:
            current, artifact = self._served()
            if name != self.name or version not in (None, current):
                wanted = name if version is None else f"{name} version {version}"
                served = f"{self.name} version {current}"
                raise RequestError(f"Servable not found for request: {wanted}. Served: {served}.", 404)
            self._users[artifact] += 1
        try:
            yield current, artifact
        finally:
            with self._lock:
                self._users[artifact] -= 1
                self._lock.notify_all()

    def predict(self, name: str, version: int | None, body: object) -> dict[str, Any]:
        """Answer a predict request."""
        with self.use(name, version) as (_, artifact):
            signature = body.get("signature_name", "") if isinstance(body, Mapping) else ""
            if not isinstance(signature, str):
                raise RequestError(f"'signature_name' must be a string. Received: {json.dumps(signature)[:100]}.")
            signature = signature or "serving_default"
            if signature not in artifact.signatures:
                names = sorted(artifact.signatures)
                raise RequestError(f"Serving signature key {signature[:100]!r} not found. Available: {names}.")
            try:
                inputs, rows = rest.parse_predict(body, artifact.signatures[signature].inputs)
                outputs: dict[str, np.ndarray] = artifact.run(signature, inputs)
            except RecursionError as error:
                raise RequestError("The JSON of the request is nested too deeply.") from error
            except (tf.errors.InvalidArgumentError, ValueError) as error:
                if isinstance(error, RequestError):
                    raise
                raise RequestError(str(error).split("\n", 1)[0]) from error
            return rest.format_predict(outputs, rows)

    def metadata(self, name: str, version: int | None) -> dict[str, Any]:
        """Answer a metadata request."""
        with self.use(name, version) as (current, artifact):
            return rest.model_metadata(self.name, current, artifact.signatures)

    def status(self, name: str, version: int | None) -> dict[str, Any]:
        """Answer a status request."""
        with self.use(name, version) as (current, _):
            return rest.model_status({current: "AVAILABLE"})


def _open_warm(path: str) -> SavedModelClassifier:
    """Open a version and run its warm-up requests, so that no user waits for a first call."""
    artifact = SavedModelClassifier(path)
    try:
        warmup.replay(artifact)
    except BaseException:
        artifact.close()
        raise
    return artifact


def _state_of(path: str) -> object:
    """Return what changes when files of a version change."""
    found = []
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                info = os.stat(os.path.join(folder, name))
                found.append((folder, name, info.st_size, info.st_mtime_ns))
    return sorted(found)

"""Batches of preprocessed images, which threads read and preprocess on all cores while the model computes."""

import collections
import concurrent.futures
import itertools
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from absl import logging

from keras_vit.inference import preparation
from keras_vit.inference.image_inputs import NamedImage

AHEAD = 2  # minimum number of batches that are prepared while the model computes
_LOGGED = 2.0  # seconds of work from which the share of the time with a waiting batch is logged

Item = TypeVar("Item")


class Batch:
    """Preprocessed images.

    Attributes:
        group: Value that the caller gave to the batch.
        names: Name of each image.
        errors: Reason why the image cannot be read, for each image; empty for a readable image.
    """

    def __init__(self, group: Any, images: Sequence[NamedImage]):
        self.group, self.names, self.errors = group, [image.name for image in images], [""] * len(images)
        self._pixels: np.ndarray | None = None  # of all images [B, H, W, C]
        self._lock = threading.Lock()

    def prepare(self, index: int, image: NamedImage, function: Callable[[bytes], np.ndarray]) -> None:
        """Read and preprocess an image. Other threads prepare the other images of the batch."""
        content = b""
        try:
            content = image.read()
            pixels = function(content)
        except Exception as error:
            reason = preparation.unreadable(error, content)
            if reason is None:
                raise
            self.errors[index] = reason
            return
        with self._lock:
            if self._pixels is None:
                self._pixels = np.empty((len(self.names), *pixels.shape), pixels.dtype)
        if pixels.shape != self._pixels.shape[1:]:
            raise ValueError(
                f"Images must have the same shape after the preprocessing. Received: {self._pixels.shape[1:]} and, for "
                f"{image.name}, {pixels.shape}. Add resize(size) to the preprocessing."
            )
        self._pixels[index] = pixels

    def results(self, compute: Callable[[np.ndarray], np.ndarray]) -> Iterator[tuple[str, np.ndarray | None, str]]:
        """Yield the name, the row of `compute(images)` and the error of each image. Unreadable images have no row."""
        readable = [index for index, error in enumerate(self.errors) if not error]
        rows: Iterator[np.ndarray] = iter(())
        if self._pixels is not None:
            all_readable = len(readable) == len(self.names)
            rows = iter(compute(self._pixels if all_readable else self._pixels[readable]))
        for name, error in zip(self.names, self.errors, strict=True):
            yield name, None if error else next(rows), error


def read(batches: Iterable[tuple[Any, Sequence[NamedImage]]], preprocess: str) -> Generator[Batch, None, None]:
    """Yield batches in order. While the caller uses a batch, threads prepare the next batches.

    Only a few batches are in memory. At the end, a log line states the share of the time in which the caller did not
    wait for a batch.

    Args:
        batches: Value of `Batch.group`, and images, of each batch. A batch without images is also yielded.
        preprocess: Preprocessing string.
    """
    function = preparation.image_function(preprocess)
    threads = cores()
    pool = concurrent.futures.ThreadPoolExecutor(threads, thread_name_prefix="images")
    queue = collections.deque[tuple[Batch, list[concurrent.futures.Future]]]()
    waited, begun = 0.0, 0.0

    def finished() -> Batch:
        nonlocal waited, begun
        batch, tasks = queue.popleft()
        start = time.monotonic()
        for task in tasks:
            task.result()
        end = time.monotonic()
        waited += end - start if begun else 0.0
        begun = begun or (end if tasks else 0.0)
        return batch

    try:
        for group, images in batches:
            batch = Batch(group, images)
            tasks = [pool.submit(batch.prepare, index, image, function) for index, image in enumerate(images)]
            queue.append((batch, tasks))
            while len(queue) > max(AHEAD, 2 * threads // max(len(images), 1)):
                yield finished()
        while queue:
            yield finished()
        if begun and (seconds := time.monotonic() - begun) > _LOGGED:
            logging.info("The model had a batch waiting for %.0f%% of the time.", 100 * (1 - waited / seconds))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield consecutive items as lists of `size` items. The last list may be shorter."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

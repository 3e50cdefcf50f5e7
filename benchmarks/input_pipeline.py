"""Measure the throughput of the input pipeline, stage by stage.

    python -m benchmarks.input_pipeline --source=folder:/images
    python -m benchmarks.input_pipeline --step_seconds=0.25 --batch_size=256

Without --source, the program creates JPEG files in a temporary directory, in the size of ImageNet's images or, with
--width=4000, of a camera's images. The stages run interleaved, with the same number of threads. The table contains
medians; `share` is relative to decoding only. With --step_seconds, the table also shows the fraction of a training step
of this length that is spent waiting for input.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from absl import flags, logging

from benchmarks import jpeg_files
from keras_vit import cli, data

flags.DEFINE_string("source", None, "Data set of JPEG files; synthetic files by default.")
flags.DEFINE_string("split", None, "Split of the data set; train by default.")
flags.DEFINE_integer("batch_size", 64, "Images per batch.", 1)
flags.DEFINE_integer("size", 224, "Height and width of the images in a batch.", 1)
flags.DEFINE_integer("width", 500, "Width of the synthetic images, in pixels; the height is three quarters of it.", 16)
flags.DEFINE_integer("threads", 0, "Decoding threads; 0 for one per core.", 0)
flags.DEFINE_integer("rounds", 5, "Measurements per stage.", 1)
flags.DEFINE_float("seconds", 4.0, "Duration of a measurement.", 0.1)
flags.DEFINE_float("step_seconds", 0.0, "Duration of a training step.", 0.0)
flags.DEFINE_multi_string("augment", ["randaug(2, 10)"], "Operations to measure, each in a separate stage.")
flags.DEFINE_bool("json", False, "Write one JSON object instead of a table.")


def main(argv: Sequence[str]) -> int:
    del argv
    options = flags.FLAGS
    threads = options.threads or os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        name = options.source
        if not name:
            count = max(16, min(256, 128_000 // options.width))
            name = f"folder:{jpeg_files.make(folder, options.width, count)}#test_fraction=0"
        source = data.open_source(name, split=options.split or "train")
        if not isinstance(source, data.IndexedSource):
            raise ValueError(
                f"--source must read its images in any order, as folder: and webdataset: do. Received: {name!r}."
            )
        stages = make_stages(source, options.size, options.batch_size, options.augment)
        rates = measure(stages, threads, options.rounds, options.seconds)
        waiting = {}
        if options.step_seconds:
            for stage in list(stages)[2:]:
                waiting[stage] = waiting_share(stages[stage], threads, options.batch_size, options.step_seconds)
    bare = rates["decode only"]
    results = {
        "source": source.name,
        "threads": threads,
        "batch_size": options.batch_size,
        "images_per_second": {stage: round(rate, 1) for stage, rate in rates.items()},
        "share_of_decoding": {stage: round(rate / bare, 3) for stage, rate in rates.items()},
        "waiting_share": {stage: round(share, 3) for stage, share in waiting.items()},
    }
    sys.stdout.write(json.dumps(results) + "\n" if options.json else as_text(results))
    return 0


Stage = tuple[tf.data.Dataset, int]  # a dataset, and the number of images per element
Stages = dict[str, Stage]


def make_stages(source: data.IndexedSource, size: int, batch_size: int, augmentations: Sequence[str]) -> Stages:
    """Return (dataset, images per element) by stage. The first two stages are references."""

    def window(index):
        encoded = source.fetch(index % source.num_examples)["image"]
        shape = tf.image.extract_jpeg_shape(encoded)
        begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            tf.zeros([0, 0, 4]),
            tf.stack([index, index]),
            min_object_covered=0.0,
            aspect_ratio_range=(0.75, 1.33),
            area_range=(0.05, 1.0),
            use_image_if_no_bounding_boxes=True,
        )
        return tf.image.decode_and_crop_jpeg(encoded, tf.concat([begin[:2], extent[:2]], 0), channels=3)

    def batched(function):  # batches numbers, to count images of any size without copying them
        numbers = tf.data.Dataset.range(2**40).map(function, tf.data.AUTOTUNE)
        return numbers.batch(batch_size).prefetch(tf.data.AUTOTUNE), batch_size

    pp, scaled = (f"decode_jpeg_and_inception_crop({size}, scaled={flag})|flip_lr" for flag in (False, True))
    stages = {
        "read only": batched(lambda index: tf.strings.length(source.fetch(index % source.num_examples)["image"])),
        "decode only": batched(lambda index: tf.size(window(index))),
        "crop, flip, batch": (data.train_batches(source, f"{pp}|value_range(-1, 1)", batch_size), batch_size),
        "the same, scaled": (data.train_batches(source, f"{scaled}|value_range(-1, 1)", batch_size), batch_size),
    }
    for operation in augmentations:
        full = f"{pp}|{operation}|value_range(-1, 1)"
        stages[f"+ {operation}"] = (data.train_batches(source, full, batch_size), batch_size)
    return stages


def with_threads(dataset: tf.data.Dataset, threads: int) -> tf.data.Dataset:
    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    return dataset.with_options(options)


def measure(stages: Stages, threads: int, rounds: int, seconds: float) -> dict[str, float]:
    """Return the images per second of each stage: the median over interleaved rounds."""
    iterators = {name: (iter(with_threads(dataset, threads)), images) for name, (dataset, images) in stages.items()}
    rates: dict[str, list[float]] = {name: [] for name in stages}
    for number in range(rounds + 1):
        for name, (iterator, count) in iterators.items():
            done, start = 0, time.perf_counter()
            while (passed := time.perf_counter() - start) < seconds:
                next(iterator)
                done += count
            if number:  # the first round warms up
                rates[name].append(done / passed)
        logging.info("Round %d of %d", number, rounds)
    return {name: statistics.median(values) for name, values in rates.items()}


def waiting_share(stage: Stage, threads: int, batch_size: int, step_seconds: float, steps: int = 20) -> float:
    """Return the fraction of the time that a step of this length waits for its batch."""
    dataset, _ = stage
    iterator = iter(with_threads(dataset, threads))
    next(iterator)
    waited, start = 0.0, time.perf_counter()
    for _ in range(steps):
        before = time.perf_counter()
        next(iterator)
        waited += time.perf_counter() - before
        time.sleep(step_seconds)
    return waited / (time.perf_counter() - start)


def as_text(results: dict[str, Any]) -> str:
    lines = [f"{results['source']}, {results['threads']} threads, batches of {results['batch_size']}"]
    lines.append(f"{'stage':32}{'images/s':>12}{'share':>8}" + ("   waiting" if results["waiting_share"] else ""))
    for stage, rate in results["images_per_second"].items():
        share = results["share_of_decoding"][stage]
        waiting = results["waiting_share"].get(stage)
        lines.append(f"{stage:32}{rate:12,.0f}{share:8.2f}" + (f"{waiting:10.1%}" if waiting is not None else ""))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    cli.run(main)

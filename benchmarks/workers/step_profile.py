"""Share of the operations in the time of a training step: `step_profile.py SYSTEM WORK`."""

import collections
import glob
import os
import tempfile

import models
from worker import Step, Work, serve

PRODUCTS = ("MatMul", "Conv2D", "Conv3D", "Einsum")  # parts of names, such as _MklNativeConv2DBackpropFilter
XLA = "CpuExecutable::ExecuteAsyncOnStream"  # event of a program that XLA compiled
LISTED = 6


def keras_vit(work: Work) -> Step:
    """Return the step of the training loop on one thread, with the share of the time outside products in its note.

    On one thread, no two operations run at the same time, so that their times add up to the time of the step.
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    step = models.keras_vit(work)

    def measured():
        with tempfile.TemporaryDirectory() as folder:
            with tf.profiler.experimental.Profile(folder):
                step()
            seconds = seconds_by_operation(folder)
        return {"seconds": sum(seconds.values()), "note": summary(seconds)}

    return measured


def summary(seconds: dict[str, float]) -> str:
    """Return the share of the time outside products, and the operations that take the most of it."""
    total = sum(seconds.values())
    others = {name: taken for name, taken in seconds.items() if not any(part in name for part in PRODUCTS)}
    longest = sorted(others.items(), key=lambda item: -item[1])[:LISTED]
    listed = ", ".join(f"{name} {100 * taken / total:.1f}%" for name, taken in longest)
    return f"{100 * sum(others.values()) / total:.0f}% outside products: {listed}"


def seconds_by_operation(folder: str) -> dict[str, float]:
    """Return the seconds of each type of operation in a profile that TensorFlow wrote to a folder."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    (path,) = glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True)
    space = xplane_pb2.XSpace()
    with open(path, "rb") as file:
        space.ParseFromString(file.read())
    seconds: dict[str, float] = collections.defaultdict(float)
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                metadata = plane.event_metadata[event.metadata_id]
                if kind := "XLA" if metadata.name == XLA else metadata.display_name:  # only operations have the latter
                    seconds[kind] += event.duration_ps / 1e12
    return dict(seconds)


if __name__ == "__main__":
    serve({"keras_vit": keras_vit}, warm_up=0)  # `models.keras_vit` has run a step

"""Decodes small files that claim hundreds of megabytes. `test_headers.py` starts it in a separate process.

    python -m tests.data.bombs

The exit code is 0 if all are refused, in the pipeline and as in an exported model, and the peak memory hardly grows.
"""

import resource
import struct
import sys

import tensorflow as tf

from keras_vit.data import headers, preprocess
from keras_vit.exporting import graph_ops
from tests.data import example_images

MEGABYTE = 2**20
ALLOWED = 100 * MEGABYTE
SMALL = example_images.encode(example_images.smooth(8, 8))
SIDES = struct.pack("<ii", 30_000, 30_000)
BOMBS = {  # the sizes in their headers are wrong
    "PNG": SMALL[:16] + struct.pack(">II", 30_000, 30_000) + SMALL[24:],
    "BMP": (lambda content: content[:18] + SIDES + content[26:])(
        example_images.encode(example_images.smooth(8, 8), "BMP")
    ),
    "GIF": example_images.encode(example_images.smooth(8, 8), "GIF"),
}


@tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
def exported(contents):
    prepare = preprocess.single_image("decode|resize(8)|value_range(-1, 1)")
    return graph_ops.map_valid(
        lambda content: prepare(headers.check(content, graph_ops.MAX_PIXELS, untrusted=True)),
        contents,
        tf.TensorSpec((8, 8, 3)),
    )


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main():
    function = preprocess.host_function("decode|resize(8)")
    function({"image": tf.constant(SMALL)})
    exported([SMALL])
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 1024 * MEGABYTE,) * 2)
    before, failures = peak(), 0
    for name, content in BOMBS.items():
        try:
            function({"image": tf.constant(content)})
            refused = False
        except tf.errors.InvalidArgumentError:
            refused = True
        valid = bool(exported([content])[1][0])
        grown = peak() - before
        print(f"{name}: {len(content):,} bytes, refused={refused}, valid={valid}, {grown / MEGABYTE:.0f} MiB")
        failures += not refused or valid or grown > ALLOWED
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

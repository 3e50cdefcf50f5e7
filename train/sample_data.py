"""Write sample images: the handwritten digits of this package, as PNG files in a folder per class.

    keras-vit sample-data --output=images

The folder has train/CLASS/*.png and test/CLASS/*.png, as `keras-vit train folder:images` takes them. For a regression,
list.csv has the mean brightness of each image in percent: `manifest:images/list.csv#values=ink`.
"""

import itertools
import os
import sys
from collections.abc import Sequence

from absl import flags

from keras_vit import program
from keras_vit.program import common_flags

common_flags.define_output_flag("Folder to write to.")
flags.DEFINE_integer("count", None, "Largest number of images per split; all if not given.", 1)

with program.imports(__name__):
    import tensorflow as tf

    from keras_vit import _io
    from keras_vit.data.readers import digits


def main(argv: Sequence[str]) -> int:
    del argv
    options = flags.FLAGS
    if not options.output:
        raise ValueError("--output is missing: the folder to write to.")
    images, labels, is_test = digits.load()
    rows = ["path,label,ink,split"]
    with _io.atomic_directory(options.output) as directory:
        for split, chosen in (("train", ~is_test), ("test", is_test)):
            pairs = zip(images[chosen], labels[chosen].tolist(), strict=True)
            for number, (image, label) in enumerate(itertools.islice(pairs, options.count)):
                path = f"{split}/{label}/{number:04}.png"
                os.makedirs(os.path.join(directory, os.path.dirname(path)), exist_ok=True)
                with open(os.path.join(directory, path), "wb") as file:
                    file.write(tf.io.encode_png(image[..., None]).numpy())
                rows.append(f"{path},{label},{image.mean() / 2.55:.2f},{split}")
        with open(os.path.join(directory, "list.csv"), "w", encoding="utf-8") as file:
            file.write("\n".join([*rows, ""]))
    sys.stdout.write(f"{options.output}\n")
    return 0


if __name__ == "__main__":
    program.run(main)

"""Write a data set as TFRecord files, for fast reading from disks and Google Cloud Storage.

    keras-vit make-tfrecords folder:/images --output=/data/images --shards=16
    keras-vit make-tfrecords tfds:cifar10 --splits=train,test --output=gs://bucket/cifar10 --shards=8

Open the result as `tfrecord:/data/images`. The program decodes every image once. An unreadable image ends the program
with an error that names the image; `--on_bad_image=skip` skips such images. If the program is interrupted, start it
again: it keeps complete files.
"""

from collections.abc import Sequence

from absl import flags, logging

from keras_vit import cli
from keras_vit.cli import common_flags

common_flags.define_data_flag()
flags.DEFINE_list("splits", [], "Splits to write. All splits of the data set if empty.")
common_flags.define_output_flag("Folder to write to, or its URL in a bucket.")
flags.DEFINE_integer("shards", 0, "Files per split. 0 writes one file per 1,000 examples, at most 1,024.", 0)
flags.DEFINE_integer("seed", 0, "Random seed for the order of the examples.")
common_flags.define_on_bad_image_flag("error")

with cli.imports(__name__):
    from keras_vit import data
    from keras_vit.util.progress import Progress

    from .datasets import writer


@cli.published("output")
def main(argv: Sequence[str]) -> int:
    options, given = flags.FLAGS, common_flags.data_argument(argv[1:])
    if not given or not options.output:
        raise ValueError("A data set, such as folder:images, and --output are needed.")
    splits = options.splits or [name for name in data.split_sizes(given) if name != "all"]
    for split in splits:
        source = data.open_source(given, split=split)
        shards = min(options.shards or default_shards(source.num_examples), source.num_examples)
        logging.info("Writing %s[%s] to %d files in %s", given, split, shards, options.output)
        log = data.BadImageLog()
        on_bad_image = log if options.on_bad_image == "skip" else "error"
        name = name_of(split)
        with Progress(name, source.num_examples) as bar:
            writer.write_tfrecords(source, options.output, name, shards, options.seed, bar.update, on_bad_image)
        if log.reasons:
            logging.warning("Left out %d images of %s that cannot be read", len(log.reasons), split)
    logging.info("Done. Open the data set as tfrecord:%s", options.output)
    return 0


def default_shards(num_examples: int) -> int:
    return max(1, min(1_024, -(-num_examples // 1_000)))


def name_of(split: str) -> str:
    """Return the name of a split for file names. Raises a ValueError for slices such as `train[:80%]`."""
    if not split.replace("_", "").isalnum():
        raise ValueError(
            f"--splits must be whole splits, such as --splits=train,test. Received: {split!r}. Take slices when "
            "reading the files."
        )
    return split


if __name__ == "__main__":
    cli.run(main)

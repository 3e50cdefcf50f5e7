"""Write a data set as TFRecord files, for fast reading from disks and Google Cloud Storage.

    keras-vit make-tfrecords folder:/images --output=/data/images --shards=16
    keras-vit make-tfrecords tfds:cifar10 --splits=train,test --output=gs://bucket/cifar10 --shards=8
    keras-vit make-tfrecords folder:/photos --resize=256 --output=/data/photos
    keras-vit make-tfrecords --index_only --output=gs://bucket/imagenet

Open the result as `tfrecord:/data/images`. The program decodes every image once. An unreadable image ends the program
with an error that names the image; `--on_bad_image=skip` skips such images. If the program is interrupted, start it
again: it keeps complete files.

Each file gets an index, `FILE.idx`, with which its records are read in any order. `--index_only` writes the indices of
existing TFRecord files, which are not changed. `--resize` makes images smaller, so that training decodes them faster.
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
flags.DEFINE_integer(
    "resize", 0, "Resize images whose smaller side is larger to this smaller side, and write them as JPEG. 0: never.", 0
)
flags.DEFINE_bool("index_only", False, "Only write the indices of the TFRecord files in --output.")

with cli.imports(__name__):
    from keras_vit import data
    from keras_vit.data.readers import record_index, tfrecord
    from keras_vit.data.sources import in_parallel
    from keras_vit.util.progress import Progress, track

    from .datasets import writer


@cli.published("output")
def main(argv: Sequence[str]) -> int:
    options, given = flags.FLAGS, common_flags.data_argument(argv[1:])
    if options.output and options.index_only and not given:
        return write_indices(options.output)
    if not given or not options.output or options.index_only:
        raise ValueError("A data set, such as folder:images, and --output are needed; or --index_only and --output.")
    splits = options.splits or [name for name in data.split_sizes(given) if name != "all"]
    for split in splits:
        source = data.open_source(given, split=split)
        shards = min(options.shards or default_shards(source.num_examples), source.num_examples)
        logging.info("Writing %s[%s] to %d files in %s", given, split, shards, options.output)
        log = data.BadImageLog()
        on_bad_image = log if options.on_bad_image == "skip" else "error"
        name = name_of(split)
        with Progress(name, source.num_examples) as bar:
            writer.write_tfrecords(
                source, options.output, name, shards, options.seed, bar.update, on_bad_image, options.resize
            )
        if log.reasons:
            logging.warning("Left out %d images of %s that cannot be read", len(log.reasons), split)
    logging.info("Done. Open the data set as tfrecord:%s", options.output)
    return 0


def write_indices(folder: str) -> int:
    files, _ = tfrecord.record_files_of(folder)
    paths = [path for of_split in files.values() for path in of_split]
    for _ in track(in_parallel(record_index.write, paths), "Writing indices", len(paths), "files"):
        pass
    logging.info("Done. %d files in %s have an index", len(paths), folder)
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

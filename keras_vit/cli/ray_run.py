"""`keras-vit predict` and `keras-vit embed` with `--engine=ray`."""

import os
import sys
from collections.abc import Sequence

from absl import flags, logging

from keras_vit.cli import common_flags
from keras_vit.util import file_io

_LOCAL_ONLY = ("dense", "sort", "order", "json")


def run_on_ray(images: Sequence[str], features: bool) -> int:
    """Write the predictions or features of images to the folder or URL `--output`, and return the exit code."""
    from keras_vit.inference import ray_engine

    options = flags.FLAGS
    wrong = [f"--{name}" for name in _LOCAL_ONLY if name in options and options[name].present]
    if wrong or not images or not options.output:
        received = ", ".join(wrong) or ("no --output" if images else "no images")
        raise ValueError(
            "--engine=ray needs images and --output, a folder or a URL for Parquet files, and takes neither "
            f"{' nor '.join(f'--{name}' for name in _LOCAL_ONLY)}. Received: {received}."
        )
    remote = file_io.is_remote(options.output)
    names = ("batch_size", *([] if features else ["top_k"]))
    count, unreadable = ray_engine.run(
        filter(common_flags.in_shard, ray_engine.listed(images)),
        options.output.rstrip("/") if remote else os.path.abspath(options.output),
        part_size=options.part_size,
        address=options.ray_address,
        workers=options.workers,
        model=os.path.abspath(options.model) if os.path.exists(options.model) else options.model,
        features=features,
        **{**{name: options[name].value for name in names}, **common_flags.model_options()},
    )
    sys.stdout.write(f"{options.output}\n")
    logging.info("%d images", count)
    if unreadable:
        logging.warning("%d of %d images could not be read; the column `error` states why", unreadable, count)
    return 1 if unreadable and options.on_bad_image == "error" else 0

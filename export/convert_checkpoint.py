"""Convert a checkpoint to the format of another project, and check that the logits stay the same.

    keras-vit convert-checkpoint ViT-B_16.npz vit_b16.keras
    keras-vit convert-checkpoint runs/flowers flowers-hf --format=huggingface
    keras-vit convert-checkpoint timm_model/ model.npz --format=big_vision --image_size=384
    keras-vit convert-checkpoint vit-base/ merged --adapter=adapter/ --format=huggingface
    keras-vit convert-checkpoint hf:facebook/dinov2-small --describe

SRC is a run directory, or the path or name of a checkpoint that keras_vit.load_checkpoint reads. DST is a file (.npz,
.safetensors, .keras) or a directory. If a format does not support the model, the error names the formats that do.
--describe prints the arguments of the model as JSON. LoRA weights, from a run or from an --adapter of peft, are merged
into the kernels.
"""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags, logging

from keras_vit import cli
from keras_vit.cli import common_flags

FORMATS = ("google", "big_vision", "huggingface", "timm", "vit_pytorch", "keras")

flags.DEFINE_string("format", None, f"One of {', '.join(FORMATS)}. By default keras if DST ends in .keras.")
common_flags.define_checkpoint_flag()
flags.DEFINE_string("adapter", None, "Folder of a peft adapter to merge, with adapter_config.json.")
flags.DEFINE_integer("classes", None, "Classes of the adapter's head, if SRC has another head or none.", 1)
flags.DEFINE_string("pooling", None, "Pooling before the adapter's head, such as token+gap of transformers' DINOv2.")
flags.DEFINE_string("dtype", "float32", "Dtype of the weights: float32, bfloat16 or float16.")
flags.DEFINE_string("naming", None, "Naming scheme of the tensors, if the format has several; see save_checkpoint.")
flags.DEFINE_boolean("stacked", None, "big_vision: whether to stack the blocks, as its scan=True does.")
flags.DEFINE_list("image_size", [], "SIZE or HEIGHT,WIDTH of the images. Position embeddings are resized to this size.")
flags.DEFINE_string("method", None, "How to resize position embeddings: reference, bilinear, bicubic or antialiased.")
flags.DEFINE_list("grid", [], "HEIGHT,WIDTH of the position table in patches, if SRC does not state it.")
flags.DEFINE_integer("num_heads", None, "Number of attention heads, if SRC does not state it.", 1)
flags.DEFINE_string("prefix", None, "Prefix of the model to convert, such as params/ema/, if SRC has several models.")
flags.DEFINE_string("model_config", None, "Path of SRC's config.json, if it is not next to SRC.")
flags.DEFINE_boolean("check", True, "Whether to read DST back and compare its logits with SRC's.")
flags.DEFINE_boolean("describe", False, "Print the arguments of SRC's model, and write nothing.")

# The weights and operations are the same, but adding the position to the class token before saving rounds once more.
TOLERANCE = 1e-4

with cli.imports(__name__):
    import keras
    import numpy as np

    from keras_vit import load_adapter, merge_adapter
    from keras_vit.checkpoints import model_from_checkpoint, save_checkpoint
    from keras_vit.checkpoints.save import check_destination
    from keras_vit.runs import load_run
    from keras_vit.util import storage
    from keras_vit.util.file_io import atomic_file, check_writable
    from keras_vit.util.progress import Progress


def main(argv: Sequence[str]) -> int:
    options = flags.FLAGS
    if len(argv) != (2 if options.describe else 3):
        raise ValueError("Expected the arguments SRC and DST, or only SRC with --describe.")
    if options.describe:
        model, _ = load_source(argv[1], options)
        unused = set() if model.get_config().get("include_top", True) else {"classes"}
        config = {name: value for name, value in model.get_config().items() if name not in unused}
        sys.stdout.write(json.dumps(config, indent=2) + "\n")
        logging.info("%s parameters", f"{model.count_params():,}")
        return 0
    check_writable(argv[2], storage.SCHEMES)
    with storage.written(argv[2], "DST", small=True) as destination:
        convert(argv[1], destination, options)
    return 0


def convert(source: str, destination: str, options: flags.FlagValues) -> None:
    """Write the model of SRC to DST, and compare the outputs of both."""
    format = options.format or ("keras" if destination.endswith(".keras") else "google")
    if format not in FORMATS:
        raise ValueError(f"--format must be one of {', '.join(FORMATS)}. Received: --format={format}.")
    if format != "keras":
        check_destination(destination, format)
    elif not destination.endswith(".keras"):
        raise ValueError(f"DST must end in .keras for --format=keras. Received: {destination!r}.")
    model, class_names = load_source(source, options)
    if options.adapter:
        load_adapter(model, options.adapter)
    with Progress("Predicting with the model"):
        expected = outputs_of(model) if options.check else None
    merge_adapter(model)
    with Progress(f"Writing {destination}"):
        if format == "keras":
            save_keras(model, destination)
        else:
            save_checkpoint(
                model,
                destination,
                format=format,
                naming=options.naming,
                stacked=options.stacked,
                dtype=options.dtype,
                class_names=class_names,
            )
    logging.info("Wrote %s (%s).", destination, format)
    if expected is not None:
        check(expected, destination, options.dtype)


def load_source(path: str, options: flags.FlagValues) -> tuple[keras.Model, Sequence[str] | None]:
    """Return the model of SRC and the names of its classes, if known."""
    path = storage.fetched(path, options.checkpoint)
    is_run = os.path.isfile(os.path.join(path, "model.keras")) and os.path.isfile(os.path.join(path, "config.json"))
    if is_run or options.checkpoint is not None:
        with Progress(f"Opening {path}"):
            run = load_run(path, options.checkpoint)
        return run.model, run.class_names
    stated = {"num_heads": options.num_heads, "classes": options.classes, "pooling": options.pooling}
    arguments: dict[str, Any] = {name: value for name, value in stated.items() if value}
    if options.image_size:
        arguments["image_size"] = one_or_two("image_size", options.image_size)
    grid = one_or_two("grid", options.grid) if options.grid else None
    model = model_from_checkpoint(
        path, method=options.method, grid=grid, prefix=options.prefix, config=options.model_config, **arguments
    )
    return model, getattr(model, "class_names", None)


def one_or_two(name: str, values: Sequence[str]) -> Any:
    """Parse SIZE or HEIGHT,WIDTH."""
    if len(values) not in (1, 2) or not all(value.isdigit() for value in values):
        raise ValueError(f"--{name} must be SIZE or HEIGHT,WIDTH. Received: --{name}={','.join(values)}.")
    return int(values[0]) if len(values) == 1 else (int(values[0]), int(values[1]))


def save_keras(model: keras.Model, path: str) -> None:
    """Write a .keras file atomically."""
    with atomic_file(path) as temporary:
        model.save(temporary)


def outputs_of(model: keras.Model) -> np.ndarray:
    """Return the outputs of a model for random images."""
    height, width, channels = model.inputs[0].shape[1:]
    shape = (2, height or 224, width or 224, channels)
    return np.asarray(model(np.random.default_rng(0).uniform(-1.0, 1.0, shape).astype("float32")))


def check(expected: np.ndarray, path: str, dtype: str) -> None:
    """Compare the outputs of the written checkpoint with the model's, which were computed before LoRA was merged."""
    with Progress(f"Comparing {path}"):
        difference = float(np.max(np.abs(expected - outputs_of(model_from_checkpoint(path)))))
    scale = max(float(np.max(np.abs(expected))), 1.0)
    logging.info("Read back: the largest difference of the outputs is %.3g.", difference)
    if dtype == "float32" and difference > TOLERANCE * scale:
        raise ValueError(f"The outputs of {path} do not match the model's: they differ by {difference:.3g}.")


if __name__ == "__main__":
    cli.run(main)

"""`save_checkpoint` writes a model in the format of another project."""

import contextlib
import dataclasses
import os
from collections.abc import Iterable
from typing import Any

import keras
import ml_dtypes
import numpy as np

from keras_vit.checkpoints import families
from keras_vit.checkpoints.checkpoint import KINDS, Layout
from keras_vit.checkpoints.families.family import Files, Writing
from keras_vit.checkpoints.formats.npz import write_npz
from keras_vit.checkpoints.formats.safetensors import write_safetensors
from keras_vit.checkpoints.formats.tensors import CheckpointError, TensorInfo
from keras_vit.checkpoints.match import weights_of
from keras_vit.checkpoints.recognition import NOTE_VERSION
from keras_vit.checkpoints.rules import Binding, bind_variables
from keras_vit.models import MAEConfig, ViTConfig
from keras_vit.models.base import check_own
from keras_vit.models.config import Config
from keras_vit.models.normalization import SYMMETRIC, Normalization, for_channels
from keras_vit.util import checks
from keras_vit.util.file_io import atomic_directory, atomic_file, check_writable, write_json

DTYPES = ("float32", "bfloat16", "float16")
_OTHER_SUFFIXES = (".npz", ".keras", ".h5", ".pth", ".pt", ".bin", ".ckpt", ".onnx", ".tflite", ".json")
# Names that are not formats, with a hint.
_OTHER_FORMATS = {
    **dict.fromkeys(("hf", "transformers"), "Did you mean 'huggingface'?"),
    "keras": "Save it with model.save('model.keras').",
}


def save_checkpoint(
    model: keras.Model,
    path: str | os.PathLike[str],
    format: str = "google",
    *,
    naming: str | None = None,
    stacked: bool | None = None,
    dtype: str = "float32",
    class_names: Iterable[str] | None = None,
) -> str:
    """Write a model in the format of another project, and return the path.

    A model that was loaded from the same format is written with the file's names and shapes. Unless the weights
    changed, every tensor is equal bit for bit. A file or a new directory appears in one step, complete and flushed to
    the disk. While an existing directory is overwritten, `load_checkpoint` reads either the old or the new weights,
    always with the matching configuration. The configuration contains the model's `input_normalization`, or [-1, 1] if
    the normalization is not known.

    Args:
        model: A `VisionTransformer` or `BiTResNet`, or a `MaskedAutoencoder` for `"mae"` and `"huggingface"`.
        path: An `.npz` file for `"google"` and `"big_vision"`, and a directory for the other formats. Instead of a
            directory, `path` can be a `.safetensors` file. The configuration is then written next to the file as
            `NAME_config.json`.
        format: `"google"` (vision_transformer, and BiT with big_transfer's names), `"big_vision"`, `"huggingface"`,
            `"timm"`, `"vit_pytorch"` or `"mae"` (facebookresearch/mae).
        naming: Naming scheme. `"google"` supports `"legacy"` (the published files) and `"linen"`. `"huggingface"`
            supports `"published"` and `"later"`. Defaults to the scheme of the file that the model was loaded from,
            or to the format's first scheme.
        stacked: Whether to stack the blocks in `"big_vision"`, which calls this `scan=True`. By default, blocks are
            stacked if the model was loaded from a file with stacked blocks.
        dtype: `"float32"`, `"bfloat16"` or `"float16"`.
        class_names: Names of the classes. Defaults to `model.class_names`.

    Raises:
        CheckpointError: If the format cannot represent this model. The message lists the reasons and the formats that
            can represent the model. The error is a `ValueError`.
        OSError: If the files cannot be written. Existing files are unchanged.

    Example:
    >>> model = keras_vit.VisionTransformer(8, 32, 1, 4, 64, image_size=32, classes=2)
    >>> path = keras_vit.save_checkpoint(model, "example/vit", format="huggingface", class_names=["cat", "dog"])
    >>> keras_vit.model_from_checkpoint(path).class_names
    ('cat', 'dog')
    """
    _check_format(format)
    checks.choice("dtype", dtype, DTYPES)
    check_own(model, *(kind.model for kind in KINDS.values()))
    kind = next(name for name, kind in KINDS.items() if isinstance(model, kind.model))
    config = model.config.to_dict()
    family, writing = families.writing_family(format, kind, config)
    layout = layout_of(model, family.name, writing, config, naming, stacked)
    path = check_destination(path, format)
    variables = weights_of(model)
    bindings, left_over = bind_variables(family.rules(layout), variables, depth=config.get("num_layers", 0))
    if left_over:
        raise CheckpointError(
            f"The {format} format cannot store {', '.join(left_over[:5])}. Save the model with "
            "model.save('model.keras'), or write the checkpoint before the model is quantized or given LoRA weights."
        )
    writer = _Writer(variables, bindings, dict(layout.renamed), dtype)
    names = tuple(class_names) if class_names is not None else model.class_names
    if names is not None and len(names) != config["classes"]:
        raise ValueError(f"`class_names` must name {config['classes']} classes. Received: {len(names)} names.")
    documents: Files = {}
    normalization = model.input_normalization
    if writing.documents is not None:
        stated = normalization or for_channels(SYMMETRIC, config["channels"])
        assert stated is not None  # a single number applies to any number of channels
        documents = writing.documents(config, layout, names, stated)
    metadata = _note(model.config, documents.get("config.json"), normalization)
    if model.resizing is not None:
        metadata["resizing"] = dataclasses.asdict(model.resizing)
    if names is not None and not documents:
        metadata["class_names"] = list(names)
    try:
        if writing.tensors == "npz":
            with atomic_file(path) as temporary:
                write_npz(temporary, writer.names, writer.produce, metadata)
        else:
            _write_safetensors(path, writer, metadata, documents)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"Could not write the checkpoint ({reason}); nothing was changed", path) from error
    return path


def _note(config: Config, document: dict[str, Any] | None, normalization: Normalization | None) -> dict[str, Any]:
    """Return facts that cannot be inferred from a model's tensors, with a copy of its `config.json` (`document`)."""
    left_out = {*config.FREE, "head"}
    if isinstance(config, MAEConfig):  # the encoder fits any head
        left_out |= set(config.OF_HEAD)
    arguments = {name: value for name, value in config.to_dict().items() if name not in left_out}
    note: dict[str, Any] = {"version": NOTE_VERSION, "arguments": arguments, "input_normalization": normalization}
    if config.image_size is not None:
        note["image_size"] = config.to_dict()["image_size"]
    if isinstance(config, ViTConfig):
        note["grid"] = list(config.grid)
    if document is not None:
        note["config"] = document
    return note


def check_destination(path: str | os.PathLike[str], format: str) -> str:
    """Check that a path is writable and suits a format, and return it as a string."""
    _check_format(format)
    path = checks.path("path", path)
    check_writable(path)
    is_npz = families.written_formats()[format] == "npz"
    suffix = os.path.splitext(path)[1].lower()
    if is_npz and suffix != ".npz" or not is_npz and suffix in _OTHER_SUFFIXES:
        expected = "an .npz file" if is_npz else "a directory or a .safetensors file"
        others = [f"format={name!r}" for name, kind in families.written_formats().items() if (kind == "npz") != is_npz]
        raise ValueError(
            f"`path` must be {expected} for format={format!r}. Received: path={path!r}. "
            f"Write other files with {' or '.join(others)}, or a .keras file with model.save()."
        )
    return path


def _check_format(format: str) -> None:
    if format in _OTHER_FORMATS:
        raise ValueError(f"`format` cannot be {format!r}. {_OTHER_FORMATS[format]}")
    checks.choice("format", format, tuple(families.written_formats()))


def layout_of(
    model: keras.Model,
    family: str,
    writing: Writing,
    config: dict[str, Any],
    naming: str | None,
    stacked: bool | None,
) -> Layout:
    """Return the layout in which to write a model."""
    read = getattr(model, "checkpoint_layout", None)
    layout = read if read is not None and read.family == family else writing.layout(config)
    if naming is not None:
        layout = writing.styles[checks.choice("naming", naming, tuple(writing.styles) or (None,))](layout)
    if stacked is not None and not writing.can_stack:
        raise ValueError(f"`stacked` is for Vision Transformers in format='big_vision'. Received: format={family!r}.")
    if stacked is not None:
        layout = dataclasses.replace(layout, stacked=stacked)
    return writing.fit(layout, config)


def _write_safetensors(path: str, writer: "_Writer", metadata: dict[str, Any], documents: Files) -> None:
    """Write tensors and configuration, so that a reader never combines old and new files.

    A new directory appears complete. In an existing directory, the file with the tensors contains a copy of the
    configuration, and `load_checkpoint` prefers this copy to `config.json`.
    """
    if path.endswith(".safetensors"):
        stem = path.removesuffix(".safetensors")
        beside = {f"{stem}_{name}": content for name, content in documents.items() if name == "config.json"}
        _write_files(path, writer, metadata, beside)
        return

    def fill(directory):
        beside = {os.path.join(directory, name): content for name, content in documents.items()}
        _write_files(os.path.join(directory, "model.safetensors"), writer, metadata, beside)

    with contextlib.suppress(FileExistsError):  # another process may create the directory meanwhile
        if not os.path.isdir(path) or not os.listdir(path):
            with atomic_directory(path) as temporary:
                fill(temporary)
            return
    fill(path)


def _write_files(path: str, writer: "_Writer", metadata: dict[str, Any], documents: Files) -> None:
    """Write all files under temporary names, then rename them one by one, beginning with the tensors."""
    with contextlib.ExitStack() as stack:
        for name, content in documents.items():
            write_json(stack.enter_context(atomic_file(name)), content)
        temporary = stack.enter_context(atomic_file(path))
        write_safetensors(temporary, writer.tensors, writer.produce, metadata)


class _Writer:
    """The tensors to write, computed one at a time."""

    def __init__(self, variables: dict[str, Any], bindings: list[Binding], renamed: dict[str, str], dtype: str):
        self._variables = variables
        self._dtype = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
        self._origin: dict[str, tuple[Binding, int]] = {}
        self.tensors: dict[str, TensorInfo] = {}
        shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
        for binding in bindings:
            for index, (name, shape) in enumerate(zip(binding.stored, binding.stored_shapes(shapes), strict=True)):
                name = renamed.get(name, name)
                self._origin[name] = binding, index
                self.tensors[name] = TensorInfo(shape, self._dtype)
        self.tensors = dict(sorted(self.tensors.items()))
        self.names = list(self.tensors)

    def produce(self, name: str) -> np.ndarray:
        """Compute one tensor of the file."""
        binding, index = self._origin[name]
        arrays = tuple(keras.ops.convert_to_numpy(self._variables[part].value) for part in binding.variables)
        return np.asarray(binding.transform.write(arrays)[index]).astype(self._dtype, copy=False)

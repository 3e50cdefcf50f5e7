"""Match a checkpoint with a model: decide which tensors are loaded, adapted or skipped, then assign the tensors."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np

from keras_vit.checkpoints import resize
from keras_vit.checkpoints.architecture import DECODER_TABLE, TABLE
from keras_vit.checkpoints.checkpoint import Checkpoint, Shape
from keras_vit.checkpoints.formats.tensors import CheckpointError
from keras_vit.checkpoints.report import LoadReport
from keras_vit.checkpoints.rules import Binding
from keras_vit.models import ViTConfig, heads
from keras_vit.models.base import ConfiguredModel
from keras_vit.models.config import plain

# Prefixes of the head's variables, and of the last norm, which is before or after the pooling.
_HEAD = ("head/", "head_dist/", "head_norm/")
_HEAD_LEAVES = ("/kernel", "/bias", "/moving_mean", "/moving_variance")  # without the scales of a quantized head
_NORMS = ("encoder_norm/", "fc_norm/")
_FIRST_KERNELS = ("embedding/kernel", "conv_root/kernel", "root_block/conv_root/kernel")
# Arguments that may differ between file and model: a load drops or adapts the affected weights.
_ADAPTED = ("patch_size", "channels", "classes", "include_top", "representation_size")


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a load; see the arguments of `load_checkpoint`."""

    head: str = "auto"
    method: str | None = None
    resize_patch: bool = False
    adapt_channels: bool = False


def weights_of(model: keras.Model) -> dict[str, Any]:
    """Return the model's weights by path, without the states of random number generators."""
    return {v.path: v for v in model.variables if not v.path.endswith("seed_generator_state")}


class Match:
    """Match of a checkpoint with a model: `decide` makes a report from headers, `fill` loads the weights."""

    def __init__(self, model: ConfiguredModel, checkpoint: Checkpoint, options: Options):
        self.model, self.checkpoint, self.options = model, checkpoint, options
        self.config = model.config.to_dict()
        # A load leaves LoRA factors, which no file contains, and the variables of a custom head unchanged.
        self._given = () if model.config.head is None else heads.variable_prefixes(model.config.head)
        found = {n: v for n, v in weights_of(model).items() if "lora_kernel" not in v.name}
        self.variables = {n: v for n, v in found.items() if not n.startswith(self._given)}
        self.report = LoadReport(checkpoint.layout.family)
        grids = (checkpoint.grid, getattr(model.config, "grid", None))
        self._grids: Any = grids if None not in grids and grids[0] != grids[1] else None  # of position tables to resize
        self._method = options.method or checkpoint.arguments.get("position_resizing", checkpoint.resize_method)
        # For each variable to load, the function from the file's array to the model's array.
        self._adapted: dict[str, Callable[[np.ndarray], np.ndarray]] = {}
        self._dropped: set[str] = set()

    def decide(self) -> LoadReport:
        """Decide from headers which variables are loaded, adapted, reset or skipped."""
        self._decide_head()
        self._decide_encoder()
        self._decide_variables()
        self._compare_arguments()
        for name, reason in self.checkpoint.assumed.items():
            value = self.checkpoint.arguments.get(name, self.config.get(name))
            self.report.notes.append(f"{name}={value!r} is assumed: {reason}")
        return self.report

    def _decide_head(self) -> None:
        """Decide whether the head is loaded, reset or skipped."""
        if self._given:
            self._drop("the model has a head of another kind", *heads.variable_prefixes(), *self._given)
            return
        path, mode = self.checkpoint.path, self.options.head
        head = [name for name in self._named(self.variables, *_HEAD) if name.endswith(_HEAD_LEAVES)]
        classes = self.checkpoint.shapes.get("head/bias", (0,))[-1]
        model_classes = self.variables["head/bias"].shape[-1] if "head/bias" in self.variables else 0
        if mode == "keep" and classes != model_classes:
            raise CheckpointError(
                f"head='keep' needs equal class counts. Received: {classes} in {path}, {model_classes} in the "
                f"model. Build the model with classes={classes}, or pass head='reset'."
            )
        if head and mode != "reset" and classes == model_classes:
            return
        if head:
            sizes = f"the file has {classes or 'no'} classes, the model has {model_classes}"
            self.report.notes.append(f"the head keeps its initial values: {sizes}")
            self.report.reset = head
        self._drop("" if head else "the model has no head", *_HEAD)
        if not self._named(self.variables, "pre_logits/"):
            # As in the reference, a model without representation_size drops the whole pre-training head.
            self._drop("the model has no pre_logits", "pre_logits/")

    def _decide_encoder(self) -> None:
        """For a headless encoder, drop the decoder, attention pooling and last norm that the model does not have."""
        alternatives = self.checkpoint.alternatives
        if "pooling" in alternatives and "MAPHead_0/probe" not in self.variables:
            self._drop("the attention pooling is left out", "MAPHead_0/")
        if self.checkpoint.kind == "mae" and "decoder_embed/kernel" not in self.variables:
            self._drop("the decoder is left out", "decoder_", "mask_token/")
        moved = "norm_after_pooling" in alternatives and self.config.get("norm_after_pooling")
        if moved and not self._named(self.checkpoint.shapes, "fc_norm/"):
            self._drop("the norm after the pooling keeps its initial values", "encoder_norm/")
            self.report.reset += self._named(self.variables, "fc_norm/")

    @staticmethod
    def _named(names: Iterable[str], *parts: str) -> list[str]:
        return [name for name in names if name.startswith(parts)]

    def _drop(self, reason: str, *parts: str) -> None:
        """Skip the file's variables whose names begin with one of `parts`, and note the reason."""
        names = self._named(self.checkpoint.shapes, *parts)
        self._dropped |= set(names)
        if names and reason:
            self.report.notes.append(reason)

    def _decide_variables(self) -> None:
        """Compare the file's variables with the model's variables."""
        found, report = self.checkpoint.shapes, self.report
        stored_of = {v: b.stored for b in self.checkpoint.bindings for v in b.variables}
        for name, shape in found.items():
            if name in self._dropped:
                continue
            if name not in self.variables:
                report.unexpected.append(f"{' + '.join(stored_of[name])} (as {name})")
                continue
            wanted = tuple(self.variables[name].shape)
            function = self._adaptation(name, shape, wanted)
            if function is None:
                report.mismatched[name] = (shape, wanted)
            else:
                self._adapted[name] = function
        report.unexpected += self.checkpoint.unexpected
        report.dropped = [s for name in sorted(self._dropped) for s in stored_of[name]] + self.checkpoint.ignored
        report.missing = [name for name in self.variables if name not in found and name not in report.reset]
        name = "pre_logits/kernel"
        if (name in found) != (name in self.variables) and name not in self._dropped:
            width = found[name][-1] if name in found else None
            report.differences["representation_size"] = (width, self.config["representation_size"])

    def _adaptation(self, name: str, shape: Shape, wanted: Shape) -> Callable[[np.ndarray], np.ndarray] | None:
        """Return the conversion of a file's array to the model's shape, or None if it is impossible. Add notes."""
        notes, method = self.report.notes, self._method
        if self._grids and name in (TABLE, DECODER_TABLE):
            (old, new), slots = self._grids, wanted[1] - math.prod(self._grids[1])
            if shape[::2] != wanted[::2] or slots != shape[1] - math.prod(old):
                return None
            sizes = f"{old[0]}x{old[1]} to {new[0]}x{new[1]}"
            notes.append(f"position embeddings were resized from {sizes} (method={method!r})")
            return lambda table: resize.resize_table(table, old, new, slots, method)
        if shape == wanted:
            return lambda array: array
        if name.endswith(resize.AXES) and shape[::2] == wanted[::2]:
            notes.append(f"{name} was resized from {shape[1]} to {wanted[1]} ({method})")
            return lambda array: resize.resize_axis(array, wanted[1], 1, method).astype(array.dtype)
        if name in _FIRST_KERNELS and len(shape) == 4 and shape[3] == wanted[3]:
            return self._kernel_adaptation(name, shape, wanted)
        return None

    def _kernel_adaptation(self, name: str, shape: Shape, wanted: Shape) -> Callable[[np.ndarray], np.ndarray] | None:
        notes, differences = self.report.notes, self.report.differences
        if shape[2] != wanted[2]:
            if not self.options.adapt_channels or shape[2] != 3 or wanted[2] == 2:
                differences["channels"] = (shape[2], wanted[2])
                notes.append("adapt_channels=True converts 3 channels to 1, or to more than 3")
                return None
            notes.append(f"{name} was adapted from {shape[2]} to {wanted[2]} channels")
        if shape[:2] != wanted[:2]:
            if not self.options.resize_patch or name != "embedding/kernel":
                differences["patch_size"] = plain((shape[0], shape[1])), plain((wanted[0], wanted[1]))
                return None
            notes.append(f"the patch kernel was resized from {shape[:2]} to {wanted[:2]} (pseudo-inverse)")

        def adapt(kernel: np.ndarray) -> np.ndarray:
            if shape[2] != wanted[2]:
                kernel = resize.adapt_channels(kernel, wanted[2], standardized=name != "embedding/kernel")
            return kernel if shape[:2] == wanted[:2] else resize.resize_patch_kernel(kernel, (wanted[0], wanted[1]))

        return adapt

    def _compare_arguments(self) -> None:
        """Report arguments that affect the outputs and differ between file and model."""
        found, config = self.checkpoint.arguments, self.config
        left_out = (*self.model.config.FREE, *_ADAPTED, *(ViTConfig.OF_HEAD if self._given else ()))
        for name in config:
            if name not in found or name in left_out:
                continue
            if name == "pooling" and config[name] is None and found[name] != "map":
                continue  # a model without pooling has the same weights
            equal = _comparable(name, found) == _comparable(name, config)
            if not equal and config[name] not in self.checkpoint.alternatives.get(name, ()):
                self.report.differences[name] = (found[name], config[name])

    def fill(self, allow_nonfinite: bool) -> None:
        """Read every tensor before the first change, so that a damaged file leaves the model unchanged."""
        source = self.checkpoint.source
        bindings = [binding for binding in self.checkpoint.bindings if self._adapted.keys() & set(binding.variables)]
        for name in dict.fromkeys(stored for binding in bindings for stored in binding.stored):
            dtype = source.tensors[name].dtype
            if not np.issubdtype(dtype, np.floating) and dtype.name != "bfloat16":
                raise CheckpointError(f"{source.path}: tensor {name!r} has dtype {dtype}; weights are real numbers.")
        arrays: dict[str, np.ndarray] = {}
        for binding in bindings:
            arrays |= self._read(binding, allow_nonfinite)
        for name in list(arrays):
            self.variables[name].assign(arrays.pop(name))
            self.report.loaded.append(name)
        for name in self.report.reset:
            layer, leaf = name.split("/")
            variable = self.variables[name]
            if name.startswith(_NORMS):
                value = keras.ops.full(variable.shape, float(leaf == "scale"), dtype=variable.dtype)
            else:
                initializer = getattr(self.model.get_layer(layer), f"{leaf}_initializer")
                value = initializer(tuple(variable.shape), dtype=variable.dtype)
            variable.assign(value)

    def _read(self, binding: Binding, allow_nonfinite: bool) -> dict[str, np.ndarray]:
        """Read the tensors of a binding, and return the arrays of its variables."""
        source, stored = self.checkpoint.source, []
        for name in binding.stored:
            array = source.read(name)
            if not allow_nonfinite and not _is_finite(array):
                raise CheckpointError(f"{source.path}: {name!r} contains NaN or infinity. Pass allow_nonfinite=True.")
            stored.append(array.astype(np.float32) if array.dtype.itemsize < 4 else array)
        arrays = binding.transform.read(tuple(stored), self.config.get("num_heads", 1))
        pairs = zip(binding.variables, arrays, strict=True)
        return {name: self._adapted[name](array) for name, array in pairs if name in self._adapted}


def _is_finite(array: np.ndarray) -> bool:
    """Return whether all entries are finite. The usual case needs one pass and no temporary array."""
    with np.errstate(all="ignore"):
        if array.dtype.itemsize != 4:
            array = array.astype(np.float32)  # the model's dtype, in which double-precision values may overflow
        return bool(np.isfinite(array.sum())) or bool(np.isfinite(array).all())


def _comparable(name: str, arguments: Mapping[str, Any]) -> Any:
    """Normalize an argument, so that values with the same effect are equal."""
    value = arguments[name]
    if name == "layer_scale":
        return value is not None
    if name == "resnet_numerics" and arguments.get("resnet_blocks") is None:
        return None
    if name == "pool_padding" and value == "edge":
        return "infinity"  # a repeated edge never changes a maximum, because the window contains the edge
    return tuple(value) if isinstance(value, list) else value

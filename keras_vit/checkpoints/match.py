"""Match of a checkpoint with a model: tensors to load, change on the way, or leave out, and what is missing."""

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from keras_vit.checkpoints import architecture, facts, resize
from keras_vit.checkpoints.checkpoint import Checkpoint, Shape
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.families import family_of
from keras_vit.models import BIT, VIT

HEADS = (
    "head/kernel",
    "head/bias",
    "head_dist/kernel",
    "head_dist/bias",
    "head_norm/moving_mean",
    "head_norm/moving_variance",
)
PRE_LOGITS = ("pre_logits/kernel", "pre_logits/bias")
NORMS = {"encoder_norm": ("encoder_norm/scale", "encoder_norm/bias"), "fc_norm": ("fc_norm/scale", "fc_norm/bias")}
_FIRST_KERNELS = ("embedding/kernel", "conv_root/kernel", "root_block/conv_root/kernel")
_SHOWN_NAMES, _COMPARED_NAMES = 40, 10


@dataclasses.dataclass(frozen=True)
class Options:
    """Arguments of `load_checkpoint`, which documents them."""

    head: str = "auto"
    method: str | None = None
    resize_patch: bool = False
    adapt_channels: bool = False
    zero_edges: bool = False


@dataclasses.dataclass(repr=False)
class LoadReport:
    """Report of `load_checkpoint`.

    Printed, it is a summary of five lines.

    Attributes:
        family: Family of the file.
        loaded: Variables that were filled from the file.
        reset: Variables of the head that were set to their initial values.
        dropped: Tensors of the file that were left out on purpose.
        unexpected: Tensors of the file that the model has no variable for.
        missing: Variables that the file does not have.
        mismatched: Variables whose shape in the file is another, as (file's shape, model's shape).
        differences: Arguments whose values differ, as (file's value, model's value).
        notes: Changes on the way and assumptions, in words.

    Example:
    >>> path = keras_vit.save_checkpoint(model, "vit.npz")
    >>> report = keras_vit.load_checkpoint(model, path)
    >>> report.family, len(report.loaded), report.problems()
    ('google', 40, False)
    """

    family: str
    loaded: list[str] = dataclasses.field(default_factory=list)
    reset: list[str] = dataclasses.field(default_factory=list)
    dropped: list[str] = dataclasses.field(default_factory=list)
    unexpected: list[str] = dataclasses.field(default_factory=list)
    missing: list[str] = dataclasses.field(default_factory=list)
    mismatched: dict[str, tuple[Shape, Shape]] = dataclasses.field(default_factory=dict)
    differences: dict[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)

    def problems(self) -> bool:
        """Return whether the load is not complete and equivalent."""
        return bool(self.unexpected or self.missing or self.mismatched or self.differences)

    def __repr__(self) -> str:
        problems = [f"{len(names)} {what}" for what in _PROBLEMS if (names := getattr(self, what))]
        return "\n".join(
            [
                f"LoadReport: {len(self.loaded)} variables loaded from a {self.family} checkpoint",
                f"  reset:    {', '.join(self.reset) or 'none'}",
                f"  left out: {_abbreviate(self.dropped)}",
                f"  problems: {', '.join(problems) or 'none'}",
                f"  notes:    {_abbreviate(self.notes, '; ')}",
            ]
        )


_PROBLEMS = ("unexpected", "missing", "mismatched", "differences")


def _abbreviate(items: list[str], separator: str = ", ", limit: int = 3) -> str:
    more = [f"{len(items) - limit} more"] if len(items) > limit else []
    return separator.join([*items[:limit], *more]) or "none"


def weights_of(model: keras.Model) -> dict[str, Any]:
    """Return the model's weights by path, without the states of random number generators."""
    return {v.path: v for v in model.variables if not v.path.endswith("seed_generator_state")}


class Match:
    """Decision about each variable of a model, made before any tensor is read.

    Args:
        model: The model to load into.
        checkpoint: The recognized file.
        options: Arguments of `load_checkpoint`.

    Attributes:
        report: The lists that the caller gets.
        changes: Functions that adapt an array of the file to the model, by variable.
        wanted: Variables to fill.
    """

    def __init__(self, model: keras.Model, checkpoint: Checkpoint, options: Options):
        self.checkpoint, self.options = checkpoint, options
        self.config = model.config.to_dict()
        self.variables = weights_of(model)
        self.report = LoadReport(checkpoint.layout.family)
        self.changes: dict[str, list[Callable[[np.ndarray], np.ndarray]]] = {}
        self.wanted: set[str] = set()
        self._method = options.method or family_of(checkpoint).resize_method
        self._dropped: set[str] = set()
        self._decide_head()
        self._decide_encoder()
        self._match()
        self.report.differences |= facts.differences(checkpoint.arguments, model.config, checkpoint.alternatives)
        for name, reason in checkpoint.assumed.items():
            self.report.notes.append(f"{name}={checkpoint.arguments.get(name)!r} is assumed: {reason}")

    def _decide_head(self) -> None:
        """Decide whether the head is loaded, reset, or left out."""
        found, path = self.checkpoint.shapes, self.checkpoint.path
        ours = {name: tuple(self.variables[name].shape) for name in HEADS if name in self.variables}
        theirs = {name: found[name] for name in HEADS if name in found}
        if not ours:
            self._drop(theirs, "the model has no head")
        else:
            classes, model_classes = (side.get("head/bias", (0,))[-1] for side in (theirs, ours))
            if self.options.head == "keep" and classes != model_classes:
                raise CheckpointError(
                    f"head='keep' needs equal class counts. Received: {classes} in {path}, {model_classes} in the "
                    f"model. Build the model with classes={classes}, or pass head='reset'."
                )
            if self.options.head != "reset" and classes == model_classes:
                return
            reason = f"the file's head has {classes} classes, the model's {model_classes}"
            if self.options.head == "reset":
                reason = "as head='reset' asks"
            self._drop(theirs, f"the head was reset to its initial values: {reason}")
            self.report.reset = list(ours)
        if not any(name in self.variables for name in PRE_LOGITS):
            # As in the reference: without representation_size the whole head of the pretraining goes.
            self._drop({name: found[name] for name in PRE_LOGITS if name in found}, "the model has no pre_logits")

    def _decide_encoder(self) -> None:
        """Leave out what only pre-training needs, where the model is the encoder of a file without a head."""
        found = self.checkpoint.shapes
        if self.checkpoint.kind == "mae" and "decoder_embed/kernel" not in self.variables:
            parts = ("decoder_", "mask_token/")
            self._drop(
                {name: shape for name, shape in found.items() if name.startswith(parts)}, "the decoder is left out"
            )
        if "norm_after_pooling" not in self.checkpoint.alternatives or not self.config.get("norm_after_pooling"):
            return
        if not any(name in found for name in NORMS["fc_norm"]):
            own = {name: found[name] for name in NORMS["encoder_norm"] if name in found}
            self._drop(own, "the norm after the pooling begins at its initial values")
            self.report.reset += [name for name in NORMS["fc_norm"] if name in self.variables]

    def _drop(self, names: Mapping[str, Shape], reason: str) -> None:
        self._dropped |= set(names)
        if names or "reset" in reason:
            self.report.notes.append(reason)

    def _match(self) -> None:
        """Compare the file's variables with the model's."""
        found, report = self.checkpoint.shapes, self.report
        stored_of = {v: b.stored for b in self.checkpoint.bindings for v in b.variables}
        for name, shape in found.items():
            if name in self._dropped:
                continue
            if name not in self.variables:
                report.unexpected.append(f"{' + '.join(stored_of[name])} (as {name})")
                continue
            wanted = tuple(self.variables[name].shape)
            if self._adapt(name, shape, wanted):
                self.wanted.add(name)
            else:
                report.mismatched[name] = (shape, wanted)
        report.unexpected += self.checkpoint.unexpected
        report.dropped = [s for name in sorted(self._dropped) for s in stored_of[name]] + self.checkpoint.ignored
        report.missing = [name for name in self.variables if name not in found and name not in report.reset]
        name = PRE_LOGITS[0]
        if (name in found) != (name in self.variables) and name not in self._dropped:
            width = found[name][-1] if name in found else None
            report.differences["representation_size"] = (width, self.config["representation_size"])

    def _adapt(self, name: str, shape: Shape, wanted: Shape) -> bool:
        """Decide how an array becomes the model's; return whether it does."""
        if name in (architecture.TABLE, architecture.DECODER_TABLE):
            return self._adapt_table(name, shape, wanted)
        if shape == wanted:
            return True
        if name.endswith(("/pos_embedding_y", "/pos_embedding_x")) and shape[::2] == wanted[::2]:
            self._change(name, lambda w: resize.resize_axis(w, wanted[1], 1, self._method).astype(w.dtype))
            self.report.notes.append(f"{name} was resized from {shape[1]} to {wanted[1]} ({self._method})")
            return True
        return name in _FIRST_KERNELS and len(shape) == 4 and self._adapt_kernel(name, shape, wanted)

    def _adapt_table(self, name: str, shape: Shape, wanted: Shape) -> bool:
        old, new = self.checkpoint.grid, facts.grid_of(self.config)
        if old is None or new is None or old == new:
            return shape == wanted
        slots = wanted[1] - new[0] * new[1]
        if shape[::2] != wanted[::2] or slots != shape[1] - old[0] * old[1]:
            return False
        self._change(
            name,
            lambda table: resize.resize_table(table, old, new, slots, self._method, self.options.zero_edges),
        )
        self.report.notes.append(
            f"position embeddings were resized from {old[0]}x{old[1]} to {new[0]}x{new[1]} (method={self._method!r})"
        )
        return True

    def _adapt_kernel(self, name: str, shape: Shape, wanted: Shape) -> bool:
        if shape[3] != wanted[3]:
            return False
        if shape[2] != wanted[2]:
            if not self.options.adapt_channels or not resize.can_adapt_channels(shape[2], wanted[2]):
                self.report.differences["channels"] = (shape[2], wanted[2])
                self.report.notes.append("adapt_channels=True turns 3 channels into 1 or more than 3")
                return False
            standardized = name != "embedding/kernel"
            self._change(name, lambda w: resize.adapt_channels(w, wanted[2], standardized))
            self.report.notes.append(f"{name} was adapted from {shape[2]} to {wanted[2]} channels")
        if shape[:2] != wanted[:2]:
            if not self.options.resize_patch or name != "embedding/kernel":
                theirs, ours = (facts.plain_pair(sizes[:2]) for sizes in (shape, wanted))
                self.report.differences["patch_size"] = theirs, ours
                return False
            height, width, *_ = wanted
            self._change(name, lambda w: resize.resize_patch_kernel(w, (height, width)))
            self.report.notes.append(f"the patch kernel was resized from {shape[:2]} to {wanted[:2]} (pseudo-inverse)")
        return True

    def _change(self, name: str, function: Callable[[np.ndarray], np.ndarray]) -> None:
        self.changes.setdefault(name, []).append(function)

    def explain(self) -> str:
        """Return the message about a file that does not fit."""
        report = self.report
        lines = [f"{self.checkpoint.path} ({report.family}) does not fit the model."]
        variants = [_variant(side) for side in (self.checkpoint.arguments, self.config)]
        if variants[0] and variants[0] != variants[1]:
            lines.append(f"The file is a {variants[0]}, the model {variants[1] or 'no published variant'}.")
        for name, (theirs, ours) in report.differences.items():
            lines.append(
                f"- `{name}`: the file has {theirs!r}, the model {ours!r}. Build the model with {name}={theirs!r}."
            )
        if report.mismatched:
            lines.append("Shapes that differ:")
            lines += [f"- {n}: file {a}, model {b}" for n, (a, b) in list(report.mismatched.items())[:_SHOWN_NAMES]]
        if report.missing:
            lines.append(f"{len(report.missing)} variables of the model are not in the file:")
            lines += _with_nearest(report.missing, report.unexpected)
        if report.unexpected:
            lines.append(f"{len(report.unexpected)} tensors of the file have no place in the model:")
            lines += _with_nearest(report.unexpected, report.missing)
        lines += [f"({note})" for note in report.notes]
        lines.append("Pass strict=False to load what fits and get this report back.")
        return "\n".join(lines)


def _variant(arguments: Mapping[str, Any]) -> str | None:
    """Return the name of the published variant that has these sizes."""
    variants: dict[str, Any] = {**VIT, **BIT}
    for name, variant in variants.items():
        sizes = dataclasses.asdict(variant)
        found = {key: arguments.get(key) for key in sizes}
        if {key: tuple(v) if isinstance(v, list) else v for key, v in found.items()} == sizes:
            return name
    return None


def _with_nearest(names: list[str], others: list[str]) -> list[str]:
    """Return a line per name, the first few with the most similar name of the other side, which is slow to find."""
    lines = []
    for index, name in enumerate(names[:_SHOWN_NAMES]):
        candidates = [other for other in others[:50] if len(other) < 200] if index < _COMPARED_NAMES else []
        match = difflib.get_close_matches(name[:200], candidates, n=1, cutoff=0.6)
        lines.append(f"- {name}" + (f"; nearest on the other side: {match[0]}" if match else ""))
    return lines

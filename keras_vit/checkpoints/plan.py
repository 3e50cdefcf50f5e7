"""Matches a checkpoint to a model: what is loaded, changed on the way, left out or missing."""

import dataclasses
import difflib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_vit.checkpoints import architecture, resize
from keras_vit.checkpoints.errors import CheckpointError
from keras_vit.checkpoints.layout import Checkpoint

HEADS = ("head/kernel", "head/bias", "head_dist/kernel", "head_dist/bias")
PRE_LOGITS = ("pre_logits/kernel", "pre_logits/bias")
_FIRST_KERNELS = ("embedding/kernel", "conv_root/kernel", "root_block/conv_root/kernel")
# How the projects themselves resize position tables; a Keras file is treated like the reference's.
_OWN_METHOD = {"huggingface": "bicubic", "timm": "antialiased"}


@dataclasses.dataclass(frozen=True)
class Options:
    """The arguments of `load_checkpoint`, which documents them."""

    head: str = "auto"
    method: str | None = None
    resize_patch: bool = False
    adapt_channels: bool = False
    zero_edges: bool = False


@dataclasses.dataclass
class LoadReport:
    """What `load_checkpoint` did.

    Attributes:
        family: The family of the file.
        loaded: Variables that were filled from the file.
        reset: Variables of the head that were set to their initial values.
        dropped: Tensors of the file that were left out on purpose.
        unexpected: Tensors of the file that the model has no place for.
        missing: Variables that the file does not have.
        mismatched: Variables whose shape in the file is another, as (file's shape, model's shape).
        differences: Arguments in which file and model differ, as (file's value, model's value).
        notes: What was changed on the way or assumed, in words.
    """

    family: str
    loaded: list[str] = dataclasses.field(default_factory=list)
    reset: list[str] = dataclasses.field(default_factory=list)
    dropped: list[str] = dataclasses.field(default_factory=list)
    unexpected: list[str] = dataclasses.field(default_factory=list)
    missing: list[str] = dataclasses.field(default_factory=list)
    mismatched: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = dataclasses.field(default_factory=dict)
    differences: dict[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)

    def problems(self) -> bool:
        """Whether anything stands against a complete and equivalent load."""
        return bool(self.unexpected or self.missing or self.mismatched or self.differences)


def weights_of(model: keras.Model) -> dict[str, Any]:
    """Returns the model's weights by path, without the states of random number generators."""
    return {v.path: v for v in model.variables if not v.path.endswith("seed_generator_state")}


class Plan:
    """What to do with each variable of a model, decided before anything is read.

    Args:
        model: The model to load into.
        checkpoint: The recognised file.
        options: What the caller wants.

    Attributes:
        report: The lists that the caller gets.
        changes: Functions that adapt an array of the file to the model, by variable.
        wanted: Variables to fill.
    """

    def __init__(self, model: keras.Model, checkpoint: Checkpoint, options: Options):
        self.model, self.checkpoint, self.options = model, checkpoint, options
        self.config = model.get_config()
        self.variables = weights_of(model)
        self.report = LoadReport(checkpoint.layout.family)
        self.changes: dict[str, list[Callable[[np.ndarray], np.ndarray]]] = {}
        self.wanted: set[str] = set()
        self._dropped: set[str] = set()
        self._decide_head()
        self._match()
        self.report.differences |= architecture.differences(checkpoint.arguments, self.config, checkpoint.alternatives)
        for name, reason in checkpoint.assumed.items():
            self.report.notes.append(f"{name}={checkpoint.arguments.get(name)!r} is assumed: {reason}")

    def _decide_head(self) -> None:
        found, model = self.checkpoint.shapes, self.variables
        ours = {name: tuple(model[name].shape) for name in HEADS if name in model}
        theirs = {name: found[name] for name in HEADS if name in found}
        drop_pre_logits = False
        if not ours:  # the model ends before the head, and before pre_logits if it has none
            self._drop(theirs, "the model has no head")
            drop_pre_logits = True
        else:
            classes = ours["head/bias"], theirs.get("head/bias")
            keep = self.options.head == "keep" or (self.options.head == "auto" and classes[0] == classes[1])
            if self.options.head == "keep" and classes[0] != classes[1]:
                raise CheckpointError(
                    f"head='keep' needs equal class counts. Received: {self._count(classes[1])} in "
                    f"{self.checkpoint.source.path}, {self._count(classes[0])} in the model. Build the model with "
                    f"classes={self._count(classes[1])}, or pass head='reset'."
                )
            if not keep:
                reason = f"the file's head has {self._count(classes[1])} classes, the model's {self._count(classes[0])}"
                if self.options.head == "reset":
                    reason = "as head='reset' asks"
                self._drop(theirs, f"the head was reset to its initial values: {reason}")
                self.report.reset = list(ours)
                drop_pre_logits = True
        if drop_pre_logits and not any(name in model for name in PRE_LOGITS):
            # As the reference does: without representation_size the pre-training head goes as a whole.
            self._drop({name: found[name] for name in PRE_LOGITS if name in found}, "the model has no pre_logits")

    @staticmethod
    def _count(shape: tuple[int, ...] | None) -> int:
        return shape[-1] if shape else 0

    def _drop(self, names: Any, reason: str) -> None:
        if names:
            self._dropped |= set(names)
        if names or "reset" in reason:
            self.report.notes.append(reason)

    def _match(self) -> None:
        found = self.checkpoint.shapes
        reset = set(self.report.reset)
        stored_of = {v: b.stored for b in self.checkpoint.bindings for v in b.variables}
        for name, shape in found.items():
            if name in self._dropped:
                continue
            if name not in self.variables:
                self.report.unexpected += [f"{' + '.join(stored_of[name])} (as {name})"]
                continue
            self.wanted.add(name)
            wanted = tuple(self.variables[name].shape)
            if shape != wanted or name == architecture.TABLE:
                self._adapt(name, shape, wanted)
        self.report.unexpected += self.checkpoint.unexpected
        self.report.dropped = [s for name in sorted(self._dropped) for s in stored_of[name]] + self.checkpoint.ignored
        self.report.missing = [name for name in self.variables if name not in found and name not in reset]
        widths = [side.get(PRE_LOGITS[0]) for side in (found, self.variables)]
        if (widths[0] is None) != (widths[1] is None) and PRE_LOGITS[0] not in self._dropped:
            theirs, ours = (
                None if side is None else tuple(side if isinstance(side, tuple) else side.shape)[-1] for side in widths
            )
            self.report.differences["representation_size"] = (theirs, ours)

    def _adapt(self, name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        """Decides how an array of another shape becomes the model's, or that it cannot."""
        if name == architecture.TABLE and len(shape) == 3 and shape[::2] == wanted[::2]:
            if self._adapt_table(wanted):
                return
        elif name.endswith(("/pos_embedding_y", "/pos_embedding_x")) and shape[::2] == wanted[::2]:
            self._change(name, lambda w: resize.resize_axis(w, wanted[1], 1, self._method()).astype(w.dtype))
            self.report.notes.append(f"{name} was resized from {shape[1]} to {wanted[1]} ({self._method()})")
            return
        elif name in _FIRST_KERNELS and len(shape) == 4 and self._adapt_kernel(name, shape, wanted):
            return
        if shape != wanted:
            self.wanted.discard(name)
            self.report.mismatched[name] = (shape, wanted)

    def _method(self) -> str:
        return self.options.method or _OWN_METHOD.get(self.checkpoint.layout.family, "reference")

    def _adapt_table(self, wanted: tuple[int, ...]) -> bool:
        old, new = self.checkpoint.grid, architecture.grid_of(self.config)
        if old == new:
            return False  # nothing to change; a wrong number of slots shows as a mismatch
        slots = wanted[1] - new[0] * new[1]
        if slots != self.checkpoint.shapes[architecture.TABLE][1] - old[0] * old[1]:
            return False
        method = self._method()
        self._change(
            architecture.TABLE,
            lambda table: resize.resize_table(table, old, new, slots, method, self.options.zero_edges),
        )
        self.report.notes.append(
            f"position embeddings were resized from {old[0]}x{old[1]} to {new[0]}x{new[1]} (method={method!r})"
        )
        return True

    def _adapt_kernel(self, name: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
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
                self.report.differences["patch_size"] = tuple(map(architecture.plain_pair, (shape[:2], wanted[:2])))
                return False
            self._change(name, lambda w: resize.resize_patch_kernel(w, wanted[:2]))
            self.report.notes.append(f"the patch kernel was resized from {shape[:2]} to {wanted[:2]} (pseudo-inverse)")
        return True

    def _change(self, name: str, function: Callable[[np.ndarray], np.ndarray]) -> None:
        self.changes.setdefault(name, []).append(function)

    def explain(self) -> str:
        """Returns the message of a load that does not fit."""
        report, path = self.report, self.checkpoint.source.path
        lines = [f"{path} ({report.family}) does not fit the model."]
        for name, (theirs, ours) in report.differences.items():
            lines.append(
                f"- `{name}`: the file has {theirs!r}, the model {ours!r}. Build the model with {name}={theirs!r}."
            )
        if report.mismatched:
            lines.append("Shapes that differ:")
            lines += [f"- {n}: file {a}, model {b}" for n, (a, b) in _some(list(report.mismatched.items()))]
        if report.missing:
            lines.append(f"{len(report.missing)} variables of the model are not in the file:")
            lines += _with_nearest(report.missing, report.unexpected)
        if report.unexpected:
            lines.append(f"{len(report.unexpected)} tensors of the file have no place in the model:")
            lines += _with_nearest(report.unexpected, report.missing)
        lines += [f"({note})" for note in report.notes]
        lines.append("Pass strict=False to load what fits and get this report back.")
        return "\n".join(lines)


def _some(items: list, limit: int = 40) -> list:
    return items[:limit]


def _with_nearest(names: list[str], others: list[str]) -> list[str]:
    """Return a line per name; the first few with the most similar of the other side, which is slow to find."""
    lines = []
    for index, name in enumerate(_some(names)):
        candidates = [other for other in others[:50] if len(other) < 200] if index < 10 else []
        match = difflib.get_close_matches(name[:200], candidates, n=1, cutoff=0.6)
        lines.append(f"- {name}" + (f"; nearest on the other side: {match[0]}" if match else ""))
    return lines

"""Rules that map stored tensors to model variables, used in both directions.

A rule names stored tensors and model variables by templates such as `blocks.{i}.attn.qkv.weight`, and holds a pair of
functions that turn the arrays of one side into those of the other.  They only transpose, reshape, split, join and
stack, so that reading and writing a tensor gives it back bit for bit.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

Arrays = tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True)
class Transform:
    """Pair of inverse functions between the arrays of a file and those of a model."""

    read: Callable[[Arrays, int], Arrays]  # from stored arrays and the number of heads
    write: Callable[[Arrays], Arrays]


SAME = Transform(lambda arrays, heads: arrays, lambda arrays: arrays)


def each(read: Callable[[np.ndarray, int], np.ndarray], write: Callable[[np.ndarray], np.ndarray]) -> Transform:
    """Return a transform of every array by itself."""
    return Transform(
        lambda arrays, heads: tuple(read(array, heads) for array in arrays),
        lambda arrays: tuple(write(array) for array in arrays),
    )


# A dense kernel, stored [out, in] by PyTorch.
DENSE = each(lambda w, heads: w.T, lambda w: w.T)
# A convolution kernel, stored [out, in, height, width] by PyTorch.
CONV = each(lambda w, heads: w.transpose(2, 3, 1, 0), lambda w: w.transpose(3, 2, 0, 1))
# Group norm parameters, stored [1, 1, 1, C] by older Flax.
GROUP_NORM_4D = each(lambda w, heads: w.reshape(w.shape[-1:]), lambda w: w.reshape(1, 1, 1, -1))
# A table or tokens without the leading axis of length one: [N, D] <-> [1, N, D]
FIRST_AXIS = each(lambda w, heads: w[None], lambda w: w[0])
# A dense kernel stored as a 1x1 convolution.
DENSE_AS_CONV = each(lambda w, heads: w.reshape(w.shape[2:]), lambda w: w[None, None])


# [H*K, D] <-> [D, H, K]
HEADS_IN = each(
    lambda w, heads: w.T.reshape(w.shape[1], heads, w.shape[0] // heads),
    lambda w: w.reshape(w.shape[0], -1).T,
)
# [H*K] <-> [H, K]
HEADS_BIAS = each(lambda w, heads: w.reshape(heads, w.shape[0] // heads), lambda w: w.reshape(-1))
# [D, H*K] <-> [H, K, D]
HEADS_OUT = each(
    lambda w, heads: w.T.reshape(heads, w.shape[1] // heads, w.shape[0]),
    lambda w: w.reshape(-1, w.shape[-1]).T,
)


def fused(inner: Transform, parts: int) -> Transform:
    """Return a transform whose stored array is the concatenation of its parts (query, key, value)."""
    return Transform(
        lambda arrays, heads: inner.read(tuple(np.split(arrays[0], parts)), heads),
        lambda arrays: (np.concatenate(inner.write(arrays)),),
    )


# One stored array for the arrays of all blocks.
STACKED = Transform(lambda arrays, heads: tuple(arrays[0]), lambda arrays: (np.stack(arrays),))


def _add(token: np.ndarray, slot: np.ndarray) -> np.ndarray:
    # A zero slot adds nothing: the token is left as it is, the sign of its zeros included.
    shapes_only = token.dtype.kind == "V"
    return token if shapes_only or not slot.any() else token + slot


def _read_without_slot(arrays: Arrays, heads: int) -> Arrays:
    *tokens, table = arrays
    slots = np.zeros((1, len(tokens), table.shape[-1]), table.dtype)
    return (*tokens, np.concatenate([slots, table], axis=1))


def _write_without_slot(arrays: Arrays) -> Arrays:
    *tokens, table = arrays
    added = [_add(token, table[:, index : index + 1]) for index, token in enumerate(tokens)]
    return (*added, table[:, len(tokens) :])


# Tokens without a stored position: their slot in the model's table is zero. Writing adds the slot to the token.
WITHOUT_SLOT = Transform(_read_without_slot, _write_without_slot)


def register_slots(num_tokens: int) -> Transform:
    """Return a transform of (tokens ..., registers, table) where the stored table has entries for the registers.

    The model's table has none: reading adds them to the registers, and writing stores zeros.
    """

    def read(arrays: Arrays, heads: int) -> Arrays:
        *tokens, registers, table = arrays
        end = num_tokens + registers.shape[1]
        registers = _add(registers, table[:, num_tokens:end])
        return (*tokens, registers, np.concatenate([table[:, :num_tokens], table[:, end:]], axis=1))

    def write(arrays: Arrays) -> Arrays:
        *tokens, registers, table = arrays
        table = np.concatenate([table[:, :num_tokens], np.zeros_like(registers), table[:, num_tokens:]], axis=1)
        return (*tokens, registers, table)

    return Transform(read, write)


@dataclasses.dataclass(frozen=True)
class Rule:
    """Correspondence of stored tensors and model variables, by templates of their names.

    `{i}` is a number, `{i:02d}` one of two digits, and `{i+1}` one more. `{*}` in a variable stands for all numbers.
    """

    stored: tuple[str, ...]
    variables: tuple[str, ...]
    transform: Transform = SAME


def rule(stored: str | Sequence[str], variables: str | Sequence[str], transform: Transform = SAME) -> Rule:
    """Return a rule; single names need no tuple."""
    as_tuple = lambda names: (names,) if isinstance(names, str) else tuple(names)  # noqa: E731
    return Rule(as_tuple(stored), as_tuple(variables), transform)


@dataclasses.dataclass(frozen=True)
class Binding:
    """Rule applied to existing names."""

    stored: tuple[str, ...]  # in the file
    variables: tuple[str, ...]  # in the model
    transform: Transform

    def variable_shapes(self, shapes: Mapping[str, tuple[int, ...]], heads: int) -> tuple[tuple[int, ...], ...]:
        """Return the shapes that reading gives, without any data."""
        dummies = tuple(np.empty(shapes[name], _NOTHING) for name in self.stored)
        try:
            results = self.transform.read(dummies, heads)
        except (ValueError, IndexError, TypeError, ZeroDivisionError) as error:
            raise ValueError(str(error)) from error
        return tuple(result.shape for result in results)

    def stored_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        """Return the shapes that writing gives, without any data."""
        return tuple(
            a.shape for a in self.transform.write(tuple(np.empty(shapes[v], _NOTHING) for v in self.variables))
        )


_NOTHING = np.dtype("V0")  # an array of this dtype has a shape, and takes no memory
_FIELD = re.compile(r"\{(\w+)(?:\+(\d))?(?::0(\d)d)?\}")


@functools.lru_cache(maxsize=2048)
def _pattern(template: str) -> tuple[re.Pattern[str], tuple[tuple[str, int], ...]]:
    """Return a template as a regular expression, and what each field adds to its number."""
    pieces, added, end = [], [], 0
    for field in _FIELD.finditer(template):
        name, plus, digits = field.groups()
        number = rf"\d{{{digits}}}" if digits else r"(?:0|[1-9]\d{0,5})"
        pieces += [re.escape(template[end : field.start()]), rf"(?P<{name}>{number})"]
        added.append((name, int(plus or 0)))
        end = field.end()
    return re.compile("".join(pieces) + re.escape(template[end:])), tuple(added)


def _numbers(template: str, name: str) -> dict[str, int] | None:
    """Return the numbers that turn the template into `name`, or None."""
    pattern, added = _pattern(template)
    match = pattern.fullmatch(name)
    if match is None:
        return None
    numbers = {field: int(match[field]) - plus for field, plus in added}
    return numbers if min(numbers.values(), default=0) >= 0 else None


def _fill(template: str, numbers: Mapping[str, int]) -> str:
    def number(field: re.Match[str]) -> str:
        name, plus, digits = field.groups()
        return str(numbers[name] + int(plus or 0)).zfill(int(digits or 0))

    return _FIELD.sub(number, template)


def bind_stored(rules: Iterable[Rule], names: Iterable[str], depth: int = 0) -> tuple[list[Binding], list[str]]:
    """Apply rules to the names in a file."""
    return _bind(rules, names, depth, forward=True)


def bind_variables(rules: Iterable[Rule], names: Iterable[str], depth: int = 0) -> tuple[list[Binding], list[str]]:
    """Apply rules to the names of a model's variables, for writing."""
    return _bind(rules, names, depth, forward=False)


def _bind(rules, names, depth, forward):
    remaining = dict.fromkeys(names)
    bindings = []
    for item in rules:
        ours, theirs = (item.stored, item.variables) if forward else (item.variables, item.stored)
        if "{*}" in item.variables[0]:
            bindings += _bind_stack(item, remaining, depth, forward)
            continue
        for name in list(remaining):
            numbers = _numbers(ours[0], name)
            if numbers is None or name not in remaining:
                continue
            mine = tuple(_fill(template, numbers) for template in ours)
            if not all(part in remaining for part in mine):
                continue
            for part in mine:
                del remaining[part]
            other = tuple(_fill(template, numbers) for template in theirs)
            bindings.append(Binding(*((mine, other) if forward else (other, mine)), item.transform))
    return bindings, list(remaining)


def _bind_stack(item, remaining, depth, forward):
    variables = tuple(item.variables[0].replace("{*}", str(index)) for index in range(depth))
    wanted = item.stored if forward else variables
    if not wanted or not all(name in remaining for name in wanted):
        return []
    for name in wanted:
        del remaining[name]
    return [Binding(item.stored, variables, item.transform)]

"""Rules that map the tensors of a file to the variables of a model, and back.

- A `Transform` converts arrays: a pair of inverse functions, one for reading and one for writing.
- A `Rule` adds the names: templates such as `blocks.{i}.attn.qkv.weight` for the tensors and for the variables.
- A `Binding` is a rule whose templates are filled in with the numbers in the names of one file or one model.

A `Transform` only transposes, reshapes, splits, joins and stacks arrays. Reading a file and writing it again therefore
returns every tensor bit for bit. The exception is a position table with entries for registers (`register_slots`).
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

Arrays = tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True)
class Transform:
    """Pair of functions that convert a file's arrays to a model's arrays, and back."""

    read: Callable[[Arrays, int], Arrays]  # from the file's arrays and the number of attention heads
    write: Callable[[Arrays], Arrays]  # from the model's arrays


SAME = Transform(lambda arrays, heads: arrays, lambda arrays: arrays)


def each(read: Callable[[np.ndarray, int], np.ndarray], write: Callable[[np.ndarray], np.ndarray]) -> Transform:
    """Return a transform that converts each array separately."""
    return Transform(
        lambda arrays, heads: tuple(read(array, heads) for array in arrays),
        lambda arrays: tuple(write(array) for array in arrays),
    )


# A dense kernel; PyTorch stores [out, in].
DENSE = each(lambda w, heads: w.T, lambda w: w.T)
# A convolution kernel; PyTorch stores [out, in, height, width].
CONV = each(lambda w, heads: w.transpose(2, 3, 1, 0), lambda w: w.transpose(3, 2, 0, 1))
# Group norm parameters; older versions of Flax store [1, 1, 1, C].
GROUP_NORM_4D = each(lambda w, heads: w.reshape(w.shape[-1:]), lambda w: w.reshape(1, 1, 1, -1))
# A table or tokens, stored without the leading axis of length one: [N, D] <-> [1, N, D]
FIRST_AXIS = each(lambda w, heads: w[None], lambda w: w[0])
# A dense kernel stored as a 1x1 convolution.
DENSE_AS_CONV = each(lambda w, heads: w.reshape(w.shape[2:]), lambda w: w[None, None])


# Kernel of query, key or value: [H*K, D] <-> [D, H, K]
HEADS_IN = each(
    lambda w, heads: w.T.reshape(w.shape[1], heads, w.shape[0] // heads),
    lambda w: w.reshape(w.shape[0], -1).T,
)
# Bias of query, key or value: [H*K] <-> [H, K]
HEADS_BIAS = each(lambda w, heads: w.reshape(heads, w.shape[0] // heads), lambda w: w.reshape(-1))
# Kernel of the output projection: [D, H*K] <-> [H, K, D]
HEADS_OUT = each(
    lambda w, heads: w.T.reshape(heads, w.shape[1] // heads, w.shape[0]),
    lambda w: w.reshape(-1, w.shape[-1]).T,
)


def fused(inner: Transform, parts: int) -> Transform:
    """Return a transform for parts (query, key, value) that a file stores as one concatenated array."""
    return Transform(
        lambda arrays, heads: inner.read(tuple(np.split(arrays[0], parts)), heads),
        lambda arrays: (np.concatenate(inner.write(arrays)),),
    )


# The arrays of all blocks, stored as one array.
STACKED = Transform(lambda arrays, heads: tuple(arrays[0]), lambda arrays: (np.stack(arrays),))


def _add(token: np.ndarray, slot: np.ndarray) -> np.ndarray:
    # A zero slot leaves the token unchanged, including the sign of its zeros.
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


# Tokens without a stored position. Reading sets the tokens' slots in the model's table to zero, and writing adds each
# slot to its token.
WITHOUT_SLOT = Transform(_read_without_slot, _write_without_slot)


def register_slots(num_tokens: int) -> Transform:
    """Return a transform of (tokens ..., registers, table) for a stored table with entries for the registers.

    The model's table has no such entries. Reading adds the entries to the registers, and writing stores zeros.
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
    """Templates for the names of tensors in a file and of the corresponding variables, with the transform between both.

    `{i}` matches a number, `{i:02d}` a number of two digits, and `{i+1}` the number plus one. `{*}` in the
    name of a variable matches all blocks, which the file stores as one tensor.
    """

    stored: tuple[str, ...]
    variables: tuple[str, ...]
    transform: Transform = SAME


def rule(stored: str | Sequence[str], variables: str | Sequence[str], transform: Transform = SAME) -> Rule:
    """Create a rule. A single name can be passed as a string."""
    as_tuple = lambda names: (names,) if isinstance(names, str) else tuple(names)  # noqa: E731
    return Rule(as_tuple(stored), as_tuple(variables), transform)


@dataclasses.dataclass(frozen=True)
class Binding:
    """A rule whose templates are filled in with the names of tensors and of the corresponding variables."""

    stored: tuple[str, ...]  # in the file
    variables: tuple[str, ...]  # in the model
    transform: Transform

    def variable_shapes(self, shapes: Mapping[str, tuple[int, ...]], heads: int) -> tuple[tuple[int, ...], ...]:
        """Compute the shapes of the variables from the shapes of the tensors, without data."""
        dummies = tuple(np.empty(shapes[name], _NOTHING) for name in self.stored)
        try:
            results = self.transform.read(dummies, heads)
        except (ValueError, IndexError, TypeError, ZeroDivisionError) as error:
            raise ValueError(str(error)) from error
        return tuple(result.shape for result in results)

    def stored_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        """Compute the shapes of the tensors from the shapes of the variables, without data."""
        return tuple(
            a.shape for a in self.transform.write(tuple(np.empty(shapes[v], _NOTHING) for v in self.variables))
        )


_NOTHING = np.dtype("V0")  # an array of this dtype has a shape and no data
_FIELD = re.compile(r"\{(\w+)(?:\+(\d))?(?::0(\d)d)?\}")


@functools.lru_cache(maxsize=2048)
def _pattern(template: str) -> tuple[re.Pattern[str], tuple[tuple[str, int], ...]]:
    """Return the regular expression of a template, and the offset that each field adds to its number."""
    pieces, added, end = [], [], 0
    for field in _FIELD.finditer(template):
        name, plus, digits = field.groups()
        number = rf"\d{{{digits}}}" if digits else r"(?:0|[1-9]\d{0,5})"
        pieces += [re.escape(template[end : field.start()]), rf"(?P<{name}>{number})"]
        added.append((name, int(plus or 0)))
        end = field.end()
    return re.compile("".join(pieces) + re.escape(template[end:])), tuple(added)


def _numbers(template: str, name: str) -> dict[str, int] | None:
    """Return the numbers for which the template gives `name`, or None if there are no such numbers."""
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
    """Apply rules to the names in a file; return the bindings, and the names that no rule matches.

    A name is bound by the first rule that matches it. `depth` is the number of blocks, for rules with `{*}`.
    """
    return _bind(rules, names, depth, forward=True)


def bind_variables(rules: Iterable[Rule], names: Iterable[str], depth: int = 0) -> tuple[list[Binding], list[str]]:
    """Apply rules to the names of a model's variables in order to write a file; see `bind_stored`."""
    return _bind(rules, names, depth, forward=False)


def _bind(rules, names, depth, forward):
    remaining = dict.fromkeys(names)
    bindings = []
    for item in rules:
        source, target = (item.stored, item.variables) if forward else (item.variables, item.stored)
        if "{*}" in item.variables[0]:
            bindings += _bind_stack(item, remaining, depth, forward)
            continue
        for name in list(remaining):
            numbers = _numbers(source[0], name)
            if numbers is None or name not in remaining:
                continue
            matched = tuple(_fill(template, numbers) for template in source)
            if not all(part in remaining for part in matched):
                continue
            for part in matched:
                del remaining[part]
            counterparts = tuple(_fill(template, numbers) for template in target)
            bindings.append(Binding(*((matched, counterparts) if forward else (counterparts, matched)), item.transform))
    return bindings, list(remaining)


def _bind_stack(item, remaining, depth, forward):
    variables = tuple(item.variables[0].replace("{*}", str(index)) for index in range(depth))
    wanted = item.stored if forward else variables
    if not wanted or not all(name in remaining for name in wanted):
        return []
    for name in wanted:
        del remaining[name]
    return [Binding(item.stored, variables, item.transform)]

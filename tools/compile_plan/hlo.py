"""Operations and memory traffic of a compiled program, counted in its text.

XLA's own figures count the body of a loop once and, on TPUs, include the memory on the chip. Here, the body of a loop
counts once per pass, and the traffic is the sum of the bytes of the operands and results of all operations,
because each fusion reads and writes memory. For arrays that the compiler places in the memory on a TPU's chip, there is
no traffic. Where an operation only uses a slice of an operand, the slice counts. The padding of arrays and custom calls
on TPUs do not count, so that the bytes of a TPU are a lower bound. On GPUs, values that stay in a cache are included.

References:
    https://openxla.org/xla/operation_semantics
"""

import collections
import dataclasses
import functools
import math
import re

_COLLECTIVE = re.compile(r" (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(")
# The name, the shapes, the operation, its operands and its attributes. The operands have no parentheses.
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%([\w.\-]+) = (\(?.*?\)?) ([a-z][\w\-]*)\(([^)]*)\)(.*)")
_COMPUTATION = re.compile(r"(ENTRY )?%([\w.\-]+) \(.*\{$")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?")  # with the layout, which ends with S(1) on a TPU's chip
# Bytes that each of n devices sends for a byte of its operand, in a ring.
_SENT: dict[str, collections.abc.Callable[[int], float]] = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: n - 1,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1,
    "one-to-one": lambda n: 1,
}
# Operations without traffic, and operations whose traffic is counted at their start.
_FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id")
_COPIES = ("copy-start", "slice-start", "dynamic-slice-start")
_SLICES = ("slice", "dynamic-slice", "gather")


Arrays = tuple[tuple[str, tuple[int, ...], bool], ...]


@dataclasses.dataclass(frozen=True)
class Instruction:
    """Operation with the arrays of its result: dtype, dimensions, and whether it is in the memory on the chip."""

    kind: str
    result: "Arrays"
    operands: tuple[str, ...]
    attributes: str

    def attribute(self, pattern: str) -> str | None:
        """Search for a pattern in the attributes, and return its first group."""
        match = re.search(pattern, self.attributes)
        return match and match[1]

    def numbers(self, name: str) -> list[int]:
        """Return the numbers of an attribute such as `lhs_contracting_dims={1}`."""
        return [
            int(number) for number in re.findall(r"\d+", self.attribute(rf'{name}\w*"?[=:]\s*([\[{{][^\]}}]*)') or "")
        ]


class Program:
    """Computations of a program, with their instructions by name."""

    def __init__(self, computations: dict[str, dict[str, Instruction]], entry: str):
        self.computations, self.entry = computations, entry

    @property
    def traffic(self) -> int:
        """Bytes that the program reads and writes."""
        return self._sum(self.entry, self._bytes)

    @property
    def flops(self) -> int:
        """Operations of matrix products, convolutions and attention. A multiply-add counts as two operations."""
        return self._sum(self.entry, self._flops)

    @property
    def sent(self) -> int:
        """Bytes that each device sends to other devices of its slice."""
        return round(self._sum(self.entry, functools.partial(self._sent, set())))

    @property
    def sent_across(self) -> int:
        """Bytes that each device sends to other slices."""
        return round(self._sum(self.entry, self._sent_across))

    def _sum(self, computation: str, count: collections.abc.Callable) -> int:
        total, instructions = 0, self.computations[computation]
        for instruction in instructions.values():
            body = instruction.attribute(r"(?:body|to_apply|calls)=%([\w.\-]+)")
            if instruction.kind in ("while", "call", "async-start") and body:
                total += self._rounds(instruction) * self._sum(body, count)
            elif instruction.kind == "conditional":
                branches = re.findall(r"%([\w.\-]+)", instruction.attribute(r"branch_computations=\{([^}]*)") or "")
                total += max((self._sum(branch, count) for branch in branches), default=0)
            elif instruction.kind not in _FREE and not instruction.kind.endswith("-done"):
                total += count(instruction, instructions)
        return total

    def _rounds(self, instruction: Instruction) -> int:
        """Return how often a loop runs: the known number, or n for a condition `round < n`. A call runs once."""
        known = instruction.attribute(r'known_trip_count":\{"n":"(\d+)"')
        condition = self.computations.get(instruction.attribute(r"condition=%([\w.\-]+)") or "", {}).values()
        less = any("direction=LT" in inner.attributes for inner in condition)
        limits = [inner.operands[0] for inner in condition if inner.kind == "constant" and less]
        return int(known or (limits[0] if len(limits) == 1 else 1))

    def _bytes(self, instruction: Instruction, others: dict[str, Instruction]) -> int:
        target = instruction.attribute(r'custom_call_target="([^"]*)"')
        if target and not target.startswith("__"):
            return 0
        if instruction.kind in _COPIES:  # the result contains both sides, the source or the slice first
            sides = instruction.result[:2]
            return min(_size((side,)) for side in sides) * sum(not on_chip for *_, on_chip in sides)
        operands = [others[name] for name in instruction.operands if name in others]
        read = sum(
            self._read(instruction, index, operand)
            for index, operand in enumerate(operands)
            if not any(on_chip for *_, on_chip in operand.result)
        )
        return read + self._written(instruction, others)

    def _read(self, instruction: Instruction, index: int, operand: Instruction) -> int:
        """Return the bytes that an operation reads of its operand with this index."""
        whole = _size(operand.result)
        if index == 0 and instruction.kind in _SLICES:
            return min(whole, _size(instruction.result))
        if index == 0 and instruction.kind == "dynamic-update-slice":
            return 0
        called = self.computations.get(instruction.attribute(r"calls=%([\w.\-]+)") or "", {})
        if instruction.kind != "fusion" or not called:
            return whole
        name = next(name for name, inner in called.items() if inner.operands == (str(index),))
        users = [(inner, inner.operands.index(name)) for inner in called.values() if name in inner.operands]
        return min(whole, sum(self._read(inner, position, called[name]) for inner, position in users))

    def _written(self, instruction: Instruction, others: dict[str, Instruction]) -> int:
        """Return the bytes that an operation writes to memory."""
        result = [array for array in instruction.result if not array[2]]
        if instruction.kind == "custom-call" and len(result) > 1 and result[-1][0] in ("s8", "u8"):
            result = result[:-1]  # a workspace
        if instruction.kind.endswith("-start"):  # the result also contains the operand and the state
            result = sorted(result, key=lambda array: _size((array,)))[-1:]
        if instruction.kind == "dynamic-update-slice":
            return _size(others[instruction.operands[1]].result) if result else 0
        called = self.computations.get(instruction.attribute(r"calls=%([\w.\-]+)") or "", {})
        # Updates in place: only the update is written.
        updates = [called[inner.operands[1]] for inner in called.values() if inner.kind == "dynamic-update-slice"]
        written = _size(tuple(result))
        return min(written, sum(_size(update.result) for update in updates)) if updates else written

    def _sent(self, seen: set[str], instruction: Instruction, others: dict[str, Instruction]) -> float:
        """Count each operation once. A TPU repeats it in all fusions that run while it is under way."""
        called = instruction.attribute(r"calls=%([\w.\-]+)")
        if instruction.kind == "fusion" and called:
            # A TPU keeps its part of the sum while it reduces: a reduce-scatter.
            sent = self._sum(called, functools.partial(self._sent, seen))
            return sent / (2 if called.startswith("all-reduce-scatter") else 1)
        kind = instruction.kind.removesuffix("-start")
        channel = instruction.attribute(r"(channel_id=\d+)")
        if kind not in _SENT or kind + (channel or "") in seen:
            return 0
        if channel:
            seen.add(kind + channel)
        return _SENT[kind](_group_size(instruction)) * _operand_size(instruction, others)

    def _sent_across(self, instruction: Instruction, others: dict[str, Instruction]) -> float:
        kind = instruction.attribute(r'_xla_megascale_transfer_type="(\w+)"')
        if instruction.kind != "send" or not kind:
            return 0
        ranges = instruction.attribute(r'_xla_megascale_target="\{([^}]*)\}x') or ""  # 1,2 or 1:4
        slices = sum(int(last or first) - int(first) + 1 for first, last in re.findall(r"(\d+)(?::(\d+))?", ranges))
        return _SENT[kind.lower().replace("_", "-")](slices) * _operand_size(instruction, others)

    def _flops(self, instruction: Instruction, others: dict[str, Instruction]) -> int:
        if instruction.kind == "fusion":
            called = self.computations.get(instruction.attribute(r"calls=%([\w.\-]+)") or "", {})
            return sum(self._flops(inner, called) for inner in called.values())
        target = instruction.attribute(r'custom_call_target="([^"]*)"') or instruction.kind
        operands = [others[name].result[0][1] for name in instruction.operands if name in others]
        result = instruction.result[0][1]
        if target == "dot" or target.startswith("__cublas"):
            return 2 * math.prod(result) * math.prod(operands[0][i] for i in instruction.numbers("lhs_contracting_dim"))
        if target.startswith("__cudnn$fmha"):
            # The forward pass has two products of [B, N, H, K]; the backward pass has four, and recomputes the weights.
            dimensions = instruction.numbers('"dimensions')  # [B, H, N, M] of the weights
            return (10 if "Backward" in target else 4) * math.prod(dimensions) * operands[0][-1]
        if target == "convolution":
            return _convolution(instruction.attributes, operands[0], operands[1], result)
        if target.startswith("__cudnn$conv"):
            return _cudnn_convolution(target, operands, result, instruction.attribute(r"dim_labels=([\w>-]+)") or "")
        return 0


@functools.cache
def _convolution(attributes: str, inputs: tuple[int, ...], kernel: tuple[int, ...], outputs: tuple[int, ...]) -> int:
    """Return the operations of a convolution. A TPU computes all matrix products as convolutions, with much padding."""
    found = dict(
        re.findall(r"(dim_labels|size|pad|stride|lhs_dilate|rhs_dilate|batch_group_count)=([\w>-]+)", attributes)
    )
    labels, axes = re.split("_|->", found["dim_labels"]), range(len(inputs) - 2)
    image, taps, result = (
        dict(zip(*each, strict=True)) for each in zip(labels, (inputs, kernel, outputs), strict=True)
    )

    def window(name: str, default: str = "1") -> list[str]:
        return found[name].split("x") if name in found else [default for _ in axes]

    products = 1  # pairs of an output and a tap that reads an input instead of padding, over all axes
    size, stride, spread, step = (
        list(map(int, window(name))) for name in ("size", "stride", "lhs_dilate", "rhs_dilate")
    )
    for axis, pad in zip(axes, window("pad", "0_0"), strict=True):
        end, first = image[str(axis)] * spread[axis], -int(pad.split("_")[0])
        places = (
            first + output * stride[axis] + tap * step[axis]
            for output in range(result[str(axis)])
            for tap in range(size[axis])
        )
        products *= sum(0 <= place < end and place % spread[axis] == 0 for place in places)
    return 2 * products * image["b"] // int(found.get("batch_group_count", 1)) * taps["i"] * taps["o"]


def _cudnn_convolution(target: str, operands: list[tuple[int, ...]], result: tuple[int, ...], labels: str) -> int:
    """Return the operations of a convolution or one of its derivatives: `dim_labels=b01f_o01i->b01f`."""
    kernel, output = operands[1], result
    if "BackwardInput" in target:
        output = operands[0]
    elif "BackwardFilter" in target:
        kernel, output = result, operands[1]
    outputs = re.split("_|->", labels)[1].index("o")
    return 2 * math.prod(output) * math.prod(kernel) // kernel[outputs]


def parse(text: str) -> Program:
    """Parse the text of a compiled program."""
    computations: dict[str, dict[str, Instruction]] = {}
    current: dict[str, Instruction] = {}
    entry = ""
    for line in text.splitlines():
        if heading := _COMPUTATION.match(line):
            current = computations.setdefault(heading[2], {})
            entry = heading[2] if heading[1] else entry
        elif match := _INSTRUCTION.match(line):
            name, shapes, kind, operands, attributes = match.groups()
            names = (operands,) if kind in ("parameter", "constant") else tuple(re.findall(r"%([\w.\-]+)", operands))
            current[name] = Instruction(kind, _arrays(shapes), names, attributes)
    if not entry:
        raise ValueError("Expected the text of an HLO module with an entry computation.")
    return Program(computations, entry)


def _group_size(instruction: Instruction) -> int:
    """Return the number of devices that exchange data with each other."""
    groups = (
        instruction.attribute(r"replica_groups=([^ ]*(?: device_ids=[^ ]*)?(?: \{[^}]*\})?)") or "{{0}}"
    )  # permutations have no groups
    if listed := re.match(r"\{\{([\d,]+)\}", groups):  # {{0,1},{2,3}}
        return listed[1].count(",") + 1
    if counts := re.match(r"\[\d+,(\d+)\]", groups):  # [2,2]<=[4]: two groups of two
        return int(counts[1])
    # mesh['a'=8,'b'=2] {'a'}, perhaps with an order of the devices; {'a':(2)4} is a part of 'a'
    if mesh := re.match(r"mesh\[(.*?)\](?:, device_ids=\S*)? \{(.*?)\}", groups):
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", mesh[1]))
        return math.prod(int(part or sizes[name]) for name, part in re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", mesh[2]))
    raise ValueError(
        f"Expected replica_groups such as {{{{0,1}}}}, [1,2]<=[2] or mesh['a'=2] {{'a'}}. Received: {groups}"
    )


@functools.cache
def _arrays(shapes: str) -> Arrays:
    return tuple(
        (dtype, tuple(int(size) for size in sizes.split(",") if size), "S(" in layout)
        for dtype, sizes, layout in _ARRAY.findall(shapes)
    )


def _operand_size(instruction: Instruction, others: dict[str, Instruction]) -> int:
    return sum(_size(others[name].result) for name in instruction.operands if name in others)


def _size(arrays: Arrays) -> int:
    """Return the bytes of arrays."""
    return sum(_bits(dtype) * math.prod(sizes) for dtype, sizes, _ in arrays) // 8


def _bits(dtype: str) -> int:
    digits = re.search(r"\d+", dtype)  # bf16, f8e4m3fn
    return int(digits[0]) if digits else 8 * (dtype == "pred")  # tokens have no size


def collectives(text: str) -> dict[str, int]:
    """Count the operations of each kind that exchange data, in the text of a compiled program."""
    return dict(collections.Counter(_COLLECTIVE.findall(text)))

"""Damages checkpoints of every format and checks that each loads or is refused, in bounded time and memory.

`python -m tools.fuzz_checkpoints --count=10000` runs it at length; `test_safety.py` runs a sample.

Every file must load, or end in a `CheckpointError` that names the file: within 5 seconds of processor time, with no
more memory than the file's size and 200 MB, and a load that fails must change no variable.
"""

import argparse
import collections
import contextlib
import functools
import io
import json
import os
import pathlib
import random
import resource
import struct
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging
from safetensors.numpy import save_file

from keras_vit.checkpoints import (
    CheckpointError,
    architecture_of,
    load_checkpoint,
    model_from_checkpoint,
    save_checkpoint,
)
from tests.checkpoints import files

MAX_SECONDS = 5.0  # of processor time: the machine may be busy
MAX_WALL_SECONDS = 60.0
MAX_BYTES = 200e6
# How often each kind is drawn. Reading HDF5 starts a process, which takes long.
WEIGHTS = {
    "vit_token_legacy": 20,
    "deflated": 10,
    "bfloat16": 10,
    "foreign": 10,
    "hybrid_blocks": 8,
    "bv_gap_rep_scan": 15,
    "bit_big_vision": 8,
    "bit_big_transfer": 8,
    "hf_vit": 15,
    "hf_deit": 8,
    "sharded": 10,
    "timm_vit": 8,
    "timm_vit_reg_ls": 12,
    "timm_hybrid_stem": 5,
    "keras": 8,
    "h5": 2,
}


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Returns damaged bytes: truncated, overwritten, with bits flipped, pieces removed, doubled or exchanged."""
    data = bytearray(content)
    kind = rng.randrange(9)
    if kind == 0:
        return bytes(data[: rng.randrange(len(data))])
    if kind == 1:
        return rng.randbytes(rng.randrange(2000))
    # Most of a file is weights, any of which are as good as others: damage is aimed at the structure.
    spots = [rng.randrange(len(data)) for _ in range(rng.choice((1, 1, 2, 8, 50)))]
    spots += [rng.randrange(min(2048, len(data))) for _ in range(rng.choice((0, 1, 4)))]
    spots += [len(data) - 1 - rng.randrange(min(20_000, len(data))) for _ in range(rng.choice((0, 1, 4)))]
    for spot in spots:
        if kind <= 3:
            data[spot] ^= 1 << rng.randrange(8)
        elif kind == 4:
            data[spot] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, 0x22, 0x2C, 0x7D))
        elif kind == 5:
            value = rng.choice((0, 1, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1, rng.getrandbits(64)))
            data[spot : spot + 8] = value.to_bytes(8, "little")
        elif kind == 6:
            del data[spot : spot + rng.randrange(64)]
        elif kind == 7:
            data[spot:spot] = data[spot : spot + rng.randrange(64)]
        else:
            other = rng.randrange(len(data))
            data[spot : spot + 16] = data[other : other + 16]
        if not data:
            break
    return bytes(data)


def mutate_json(value: Any, rng: random.Random) -> Any:
    """Returns a JSON value with one entry changed, removed, or doubled under another name."""
    if isinstance(value, dict) and value and rng.random() < 0.95:
        key = rng.choice(list(value))
        choice = rng.randrange(8)
        if choice == 0:
            return {k: v for k, v in value.items() if k != key}
        if choice == 1:
            return {**value, mutate_name(key, rng): value[key]}
        return {**value, key: mutate_json(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        return [*value[:index], mutate_json(value[index], rng), *value[index + 1 :]]
    if isinstance(value, int) and rng.random() < 0.5:
        return rng.choice((value + 1, value - 1, value * 1000, -value, 2 * value))
    nested: Any = 0
    for _ in range(200):
        nested = [nested]
    numbers = (0, -1, 1, 7, 2**31, 2**63, 10**400, 0.5, 1e308)
    return rng.choice((None, True, False, *numbers, "", "x", "9" * 50, [], {}, [0, 0], nested))


def mutate_name(name: str, rng: random.Random) -> str:
    """Returns a tensor's name with another number or letter in it."""
    digits = [index for index, letter in enumerate(name) if letter.isdigit()]
    if digits and rng.random() < 0.8:
        index = rng.choice(digits)
        return name[:index] + rng.choice(("2", "7", "12", "999", "999999", "99999999999", "9" * 30)) + name[index + 1 :]
    return rng.choice((name + "x", "../" + name, name[::-1], "", name.rpartition("/")[0], "\1" + name))


def npy(shape: str, dtype: str = "<f4", data: bytes = b"") -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def mutate_archive(data: bytes, rng: random.Random) -> bytes:
    """Damages members of an archive, and its note, where the checksums are right."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(result, "w") as target:
        names = source.namelist()
        victims = set(rng.sample(names, k=min(rng.choice((0, 1, 3)), len(names))))
        dropped = rng.choice(names) if rng.random() < 0.15 else None
        block = f"encoderblock_{rng.randrange(2)}/" if rng.random() < 0.1 else None
        for name in names:
            member = bytearray(source.read(name))
            if name == dropped or (block and block in name):
                continue
            if name in victims:
                member = _mutate_member(name, member, rng)
            stem, extension = os.path.splitext(name)
            new = (mutate_name(stem, rng) or "x") + extension if name in victims and rng.random() < 0.2 else name
            target.writestr(new, bytes(member))
        target.comment = source.comment
        prefix = b"keras_vit:"
        if source.comment.startswith(prefix) and rng.random() < 0.4:
            note = mutate_json(json.loads(source.comment.removeprefix(prefix)), rng)
            target.comment = prefix + json.dumps(note).encode()
    return result.getvalue()


def _mutate_member(name, member, rng):
    if name.endswith(".json"):
        return json.dumps(mutate_json(json.loads(member), rng)).encode()
    choice = rng.randrange(5)
    if choice == 0:
        return bytearray(mutate(bytes(member[:128]), rng)) + member[128:]
    if choice == 1:
        changes = ((b"<f4", b"|O "), (b"<f4", b"<f8"), (b"(", b"(9"), (b"32", b"99"), (b"'", b"`"))
        return member.replace(*rng.choice(changes), 1)
    if choice == 2 and len(member) > 132:
        member[128:132] = rng.choice((b"\x00\x00\x80\x7f", b"\x00\x00\xc0\x7f"))  # infinity, NaN
        return member
    if choice == 3:
        return npy(rng.choice(("()", "(0,)", "(1,)", "(2, 2)", "(0, 8589934592)", "(1073741824, 0)", "(1, 0, 32)")))
    return npy("(1,)", data=bytes(4))


def mutate_safetensors(data: bytes, rng: random.Random) -> bytes:
    """Damages the header; the data behind it stays."""
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    note = header.get("__metadata__", {}).get("keras_vit")
    if note and rng.random() < 0.3:
        header["__metadata__"]["keras_vit"] = json.dumps(mutate_json(json.loads(note), rng))
    else:
        header = mutate_json(header, rng)
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data[8 + length :]


def mutate_file(name: str, data: bytes, rng: random.Random) -> bytes:
    """Damages a file by its format, or blindly."""
    if rng.random() < 0.4:
        return mutate(data, rng)
    if name.endswith(".json"):
        return json.dumps(mutate_json(json.loads(data), rng)).encode()
    if data[:2] == b"PK":
        return mutate_archive(data, rng)
    return mutate_safetensors(data, rng) if name.endswith(".safetensors") else mutate(data, rng)


class Case:
    """A checkpoint that is damaged: its files, and a model that it fits."""

    def __init__(self, name: str, directory: pathlib.Path):
        self.directory = directory / name
        self.directory.mkdir()
        source = name if name in WEIGHTS and (name in files.FLAX or name in files.TORCH) else "vit_token_legacy"
        source = "hf_vit" if name == "sharded" else source
        arguments = files.golden_case(source)[0]
        self.arguments = {**arguments, **({"grid": (4, 4)} if name.startswith("timm") else {})}
        self.model = model_from_checkpoint(files.golden_path(source), **arguments)
        self.path = self._write(name, source)
        unread = self.directory / "preprocessor_config.json"
        self.files = {path.name: path.read_bytes() for path in self.directory.iterdir() if path != unread}
        self.before = [np.array(variable) for variable in self.model.variables]

    def _write(self, name, source):
        if name == "keras":
            self.model.save(self.directory / "model.keras")
        elif name == "h5":
            self.model.save_weights(self.directory / "model.weights.h5")
        elif name in ("deflated", "foreign"):
            files.write_npz(self.directory / "x.npz", files.tensors_of(source), compressed=name == "deflated")
        elif name == "bfloat16":
            save_checkpoint(self.model, self.directory / "x.npz", dtype="bfloat16")
        elif name == "sharded":
            self._write_shards(files.tensors_of(source))
            return self.directory
        elif name in files.TORCH:
            self.model = model_from_checkpoint(save_checkpoint(self.model, self.directory, files.golden_format(name)))
            return self.directory
        else:
            save_checkpoint(self.model, self.directory / "x.npz", format=files.golden_format(name))
        return next(self.directory.iterdir())

    def _write_shards(self, tensors):
        names = sorted(tensors)
        weight_map: dict[str, str] = {}
        for index in range(3):
            save_file({name: tensors[name] for name in names[index::3]}, self.directory / f"{index}.safetensors")
            weight_map |= dict.fromkeys(names[index::3], f"{index}.safetensors")
        (self.directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        (self.directory / "config.json").write_text(json.dumps(files.hf_config()))


class Fuzzer:
    """Feeds damaged files to `load_checkpoint`, `architecture_of` and `model_from_checkpoint`.

    Args:
        directory: Where the files are written.
        seed: Seed of all damage.

    Attributes:
        counts: Number of files by (kind, outcome).
        slowest: Most processor time that one file took, in seconds.
        largest: Most memory that one file took beyond its size, in bytes.
    """

    def __init__(self, directory: pathlib.Path, seed: int):
        self.directory, self.rng = pathlib.Path(directory), random.Random(seed)
        self.case = functools.cache(lambda name: Case(name, self.directory))
        self.counts: collections.Counter[tuple[str, str]] = collections.Counter()
        self.slowest = self.largest = 0.0

    @property
    def refused(self) -> int:
        return sum(count for (_, outcome), count in self.counts.items() if outcome == "refused")

    def step(self) -> None:
        """Tries one damaged file; raises what must not happen."""
        kind = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        case = self.case(kind)
        victim = self.rng.choice(list(case.files))
        state = self.rng.getstate()
        target = case.directory / victim
        target.write_bytes(mutate_file(victim, case.files[victim], self.rng))
        try:
            self._try(kind, case)
        except BaseException as error:
            kept = pathlib.Path(tempfile.gettempdir(), f"fuzz-{kind}-{victim}")
            kept.write_bytes(target.read_bytes())
            error.add_note(f"{kind}/{victim}, kept as {kept}; the generator's state began with {state[1][:3]}")
            raise
        finally:
            target.write_bytes(case.files[victim])

    def _try(self, kind, case):
        size = sum(path.stat().st_size for path in case.directory.iterdir())
        base, began, started = _memory("VmRSS"), _processor_time(), time.monotonic()
        with contextlib.suppress(OSError):
            pathlib.Path("/proc/self/clear_refs").write_text("5")  # forget the peak
        try:
            outcome = self._read(case)
        except CheckpointError as error:
            assert str(case.directory) in str(error), f"does not name the file: {error}"
            outcome = "refused"
        seconds, used = _processor_time() - began, _memory("VmHWM") - base - size
        self.counts[kind, outcome] += 1
        self.slowest, self.largest = max(self.slowest, seconds), max(self.largest, used)
        assert seconds < MAX_SECONDS, f"took {seconds:.1f} s"
        assert time.monotonic() - started < MAX_WALL_SECONDS, f"took {time.monotonic() - started:.1f} s by the clock"
        assert used < MAX_BYTES, f"took {used / 1e6:.0f} MB"
        if outcome == "refused":  # not one variable may have changed
            for variable, value in zip(case.model.variables, case.before, strict=True):
                np.testing.assert_array_equal(np.asarray(variable), value)

    def _read(self, case):
        draw = self.rng.random()
        if draw < 0.3:
            architecture_of(case.path, **case.arguments)
            return "described"
        if draw < 0.33:  # slower, since it builds a model
            model_from_checkpoint(case.path, **case.arguments)
            return "built"
        load_checkpoint(case.model, case.path, grid=case.arguments.get("grid"))
        for variable, value in zip(case.model.variables, case.before, strict=True):
            assert np.isfinite(np.asarray(variable)).all()
            variable.assign(value)
        return "loaded"


def _processor_time():
    """Returns the seconds that this process and those it started have used."""
    return sum(os.times()[:4])


def _memory(key):
    """Returns a figure of this process in bytes: VmRSS (now) or VmHWM (the peak)."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    logging.set_verbosity(logging.FATAL)
    with tempfile.TemporaryDirectory() as directory:
        fuzzer = Fuzzer(pathlib.Path(directory, "files"), arguments.seed)
        fuzzer.directory.mkdir()
        for name in WEIGHTS:
            fuzzer.case(name)
        start, failures = time.monotonic(), 0
        for index in range(arguments.count):
            try:
                fuzzer.step()
            except Exception as error:  # noqa: BLE001 (every kind is a finding)
                failures += 1
                notes = "; ".join(getattr(error, "__notes__", ()))
                sys.stdout.write(f"{type(error).__name__}: {str(error)[:300]} ({notes})\n")
            if index % 500 == 499:
                sys.stdout.write(f"{index + 1}: {_totals(fuzzer)}, {time.monotonic() - start:.0f} s\n")
                sys.stdout.flush()
    for (kind, outcome), count in sorted(fuzzer.counts.items()):
        sys.stdout.write(f"{kind:20} {outcome:10} {count}\n")
    helper = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    sys.stdout.write(f"most memory of a process that reads HDF5: {helper:.0f} MiB\n")
    sys.stdout.write(f"{arguments.count} damaged files: {_totals(fuzzer)}; {failures} failures\n")
    return 1 if failures else 0


def _totals(fuzzer):
    totals: collections.Counter[str] = collections.Counter()
    for (_, outcome), count in fuzzer.counts.items():
        totals[outcome] += count
    words = ", ".join(f"{count} {outcome}" for outcome, count in sorted(totals.items()))
    return f"{words}; slowest {fuzzer.slowest:.2f} s; most memory beyond the file's size {fuzzer.largest / 1e6:.0f} MB"


if __name__ == "__main__":
    sys.exit(main())

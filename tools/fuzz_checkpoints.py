"""Damage checkpoints of every format and check that each one is loaded or rejected in bounded time and memory.

`python -m tools.fuzz_checkpoints --count=10000` runs the full check; `test_safety.py` runs a sample.

Every file must either load or raise a `CheckpointError` that names the file. It may take at most 5 seconds of processor
time, and at most 200 MB of memory in addition to the size of the file. A load that fails must not change any variable.
"""

import argparse
import collections
import contextlib
import functools
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence

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
from tools import damage

MAX_SECONDS = 5.0  # processor time, because the machine may be busy
MAX_WALL_SECONDS = 60.0
MAX_BYTES = 200e6
# Relative frequency of each kind. Reading HDF5 starts a process, which is slow.
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
    **dict.fromkeys(files.AS_WRITTEN, 4),
}


class Case:
    """Checkpoint to damage: its files, and a model that can load it."""

    def __init__(self, name: str, directory: pathlib.Path):
        self.directory = directory / name
        self.directory.mkdir()
        if name in files.AS_WRITTEN:
            self._copy(name)
            return
        source = name if name in WEIGHTS and (name in files.FLAX or name in files.TORCH) else "vit_token_legacy"
        source = "hf_vit" if name == "sharded" else source
        arguments = files.golden_case(source)[0]
        self.arguments = {**arguments, **({"grid": (4, 4)} if name.startswith("timm") else {})}
        self.model = model_from_checkpoint(files.golden_path(source), **arguments)
        self.path = self._write(name, source)
        unread = self.directory / "preprocessor_config.json"
        self.files = {path.name: path.read_bytes() for path in self.directory.iterdir() if path != unread}
        self.before = [np.array(variable) for variable in self.model.variables]

    def _copy(self, name):
        """Copy a golden file, as its project wrote the file, with its configuration."""
        shutil.copy(files.golden_path(name), self.directory / "model.safetensors")
        if (files.GOLDEN / f"{name}_config.json").exists():
            shutil.copy(files.GOLDEN / f"{name}_config.json", self.directory / "config.json")
        self.arguments, self.path = files.arguments_of(name), self.directory
        self.model = model_from_checkpoint(self.path, **self.arguments)
        self.files = {path.name: path.read_bytes() for path in self.directory.iterdir()}
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
    """Feed of damaged files to `load_checkpoint`, `architecture_of` and `model_from_checkpoint`.

    Args:
        directory: Where the files are written.
        seed: Seed of all damage.

    Attributes:
        counts: Number of files by (kind, outcome).
        slowest: Maximum processor time of a file, in seconds.
        largest: Maximum memory of a file in addition to its size, in bytes.
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
        """Try one damaged file. Raise an error if the file violates a limit of the module's docstring."""
        kind = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        case = self.case(kind)
        victim = self.rng.choice(list(case.files))
        state = self.rng.getstate()
        target = case.directory / victim
        target.write_bytes(damage.mutate_file(victim, case.files[victim], self.rng))
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
        if outcome == "refused":  # no variable may have changed
            for variable, value in zip(case.model.variables, case.before, strict=True):
                np.testing.assert_array_equal(np.asarray(variable), value)

    def _read(self, case):
        draw = self.rng.random()
        if draw < 0.3:
            architecture_of(case.path, **case.arguments)
            return "described"
        if draw < 0.33:  # rare, because building a model is slow
            model_from_checkpoint(case.path, **case.arguments)
            return "built"
        load_checkpoint(case.model, case.path, grid=case.arguments.get("grid"))
        for variable, value in zip(case.model.variables, case.before, strict=True):
            assert np.isfinite(np.asarray(variable)).all()
            variable.assign(value)
        return "loaded"


def _processor_time():
    """Return the processor time of this process and its ended children, in seconds."""
    return sum(os.times()[:4])


def _memory(key):
    """Return the memory of this process in bytes: VmRSS (current) or VmHWM (peak)."""
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

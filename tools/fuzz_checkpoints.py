"""Damages checkpoint files in many ways and checks that each either loads or is refused, in bounded memory.

`python -m tools.fuzz_checkpoints --count=10000` runs it at length; `test_safety.py` runs a short form.
"""

import argparse
import io
import pathlib
import random
import resource
import sys
import tempfile
import time
import warnings
import zipfile

import numpy as np
from absl import logging

from keras_vit.checkpoints import load_checkpoint, model_from_checkpoint, save_checkpoint
from tests.checkpoints import files

NAMES = ("vit_token_legacy", "bv_gap_rep_scan", "vit_gap", "hf_vit", "timm_vit_reg_ls", "keras", "h5")
# Reading HDF5 starts a process, which takes much longer.
WEIGHTS = (20, 20, 20, 20, 20, 10, 1)


def mutate(data, rng):
    """Returns damaged bytes: truncated, overwritten, with bits flipped, pieces removed, doubled or exchanged."""
    data = bytearray(data)
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


def mutate_headers(data, rng):
    """Damages the `.npy` headers inside an archive, whose checksums are then right."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(result, "w") as target:
        names = source.namelist()
        victims = set(rng.sample(names, k=min(3, len(names))))
        for name in names:
            member = bytearray(source.read(name))
            if name in victims:
                choice = rng.randrange(4)
                if choice == 0:
                    member = bytearray(mutate(bytes(member[:128]), rng)) + member[128:]
                elif choice == 1:
                    old, new = rng.choice(
                        ((b"<f4", b"|O "), (b"<f4", b"<f8"), (b"(", b"(9"), (b"32", b"99"), (b"'", b"`"))
                    )
                    member = member.replace(old, new, 1)
                elif choice == 2 and len(member) > 132:
                    member[128:132] = rng.choice((b"\x00\x00\x80\x7f", b"\x00\x00\xc0\x7f"))  # infinity, NaN
                else:
                    continue
            target.writestr(
                rng.choice((name, name, name, name + "x", "../" + name)) if name in victims else name, member
            )
    return result.getvalue()


class Fuzzer:
    """Feeds damaged files to `load_checkpoint` and `model_from_checkpoint`.

    Args:
        directory: Where the files are written.
        seed: Seed of all damage.
    """

    def __init__(self, directory, seed):
        self.directory, self.rng = pathlib.Path(directory), random.Random(seed)
        self.cases = [self._case(name) for name in NAMES]
        self.loaded = self.refused = 0

    def _case(self, name):
        source = "vit_token_legacy" if name in ("keras", "h5") else name
        arguments = files.golden_case(source)[0]
        model = model_from_checkpoint(files.golden_path(source), **arguments)
        path = self.directory / f"{name}.file"
        if name == "keras":
            model.save(self.directory / "model.keras")
            path = self.directory / "model.keras"
        elif name == "h5":
            model.save_weights(self.directory / "model.weights.h5")
            path = self.directory / "model.weights.h5"
        elif name in files.TORCH:
            save_checkpoint(model, self.directory / name, format=files.golden_format(name))
            path = self.directory / name / "model.safetensors"
        else:
            save_checkpoint(model, path, format=files.golden_format(name))
        return name, path.read_bytes(), model, [np.array(variable) for variable in model.variables]

    def step(self):
        """Tries one damaged file; raises what must not happen."""
        name, data, model, before = self.rng.choices(self.cases, WEIGHTS)[0]
        archive = data[:2] == b"PK" and name != "keras"
        damaged = mutate_headers(data, self.rng) if archive and self.rng.random() < 0.4 else mutate(data, self.rng)
        path = self.directory / "damaged"
        path.write_bytes(damaged)
        try:
            load_checkpoint(model, path)
        except ValueError as error:
            assert str(path) in str(error), error
            self.refused += 1
            # Not one variable may have changed.
            assert all(np.array_equal(v.numpy(), value) for v, value in zip(model.variables, before, strict=True))
        else:
            self.loaded += 1
            assert all(np.isfinite(variable.numpy()).all() for variable in model.variables)
            for variable, value in zip(model.variables, before, strict=True):
                variable.assign(value)
        if self.rng.random() < 0.02:  # slower, since it builds models
            try:
                model_from_checkpoint(path, **({"num_heads": 4} if name.startswith("timm") else {}))
            except ValueError as error:
                assert "damaged" in str(error) or str(error)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    logging.set_verbosity(logging.ERROR)
    with tempfile.TemporaryDirectory() as directory:
        fuzzer = Fuzzer(directory, arguments.seed)
        base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = slowest = time.monotonic()
        slowest = 0.0
        for _ in range(arguments.count):
            began = time.monotonic()
            fuzzer.step()
            slowest = max(slowest, time.monotonic() - began)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) / 1024
        sys.stdout.write(
            f"{arguments.count} damaged files: {fuzzer.refused} refused, {fuzzer.loaded} loaded (the damage was in "
            f"weights or unread bytes), {time.monotonic() - start:.0f} s, slowest {slowest:.2f} s, "
            f"peak memory +{grown:.0f} MiB\n"
        )


if __name__ == "__main__":
    main()

"""Random damage to the structure of checkpoint files, reproducible with a seeded generator."""

import io
import json
import os
import random
import re
import struct
import zipfile
from typing import Any


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Return damaged bytes: truncated or overwritten, with flipped bits, or with removed, doubled or copied pieces."""
    data = bytearray(content)
    kind = rng.randrange(9)
    if kind == 0:
        return bytes(data[: rng.randrange(len(data))])
    if kind == 1:
        return rng.randbytes(rng.randrange(2000))
    # Most bytes are weights, where any value is valid. Damage is concentrated on the beginning and the end of the file.
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
    """Return a JSON value with one entry changed, removed, or duplicated under another name."""
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
    """Return a changed name of a tensor, mostly with another number in it."""
    digits = [index for index, letter in enumerate(name) if letter.isdigit()]
    if digits and rng.random() < 0.8:
        index = rng.choice(digits)
        return name[:index] + rng.choice(("2", "7", "12", "999", "999999", "99999999999", "9" * 30)) + name[index + 1 :]
    return rng.choice((name + "x", "../" + name, name[::-1], "", name.rpartition("/")[0], "\1" + name))


def kind_of(name: str) -> str:
    """Return the name of a tensor without the number of its block."""
    return re.sub(r"\d+", "#", name)


def drop_kind(data: bytes, rng: random.Random) -> bytes:
    """Return a `.safetensors` file without one kind of tensors, with correct offsets for the remaining tensors."""
    length = struct.unpack("<Q", data[:8])[0]
    header, kept, content = json.loads(data[8 : 8 + length]), {}, bytearray()
    dropped = rng.choice(sorted({kind_of(name) for name in header if name != "__metadata__"}))
    for name, entry in header.items():
        if name != "__metadata__":
            if kind_of(name) == dropped:
                continue
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            entry = {**entry, "data_offsets": [len(content), len(content) + end - begin]}
            content += data[begin:end]
        kept[name] = entry
    encoded = json.dumps(kept).encode()
    return struct.pack("<Q", len(encoded)) + encoded + bytes(content)


def npy(shape: str, data: bytes = b"") -> bytes:
    """Return a float32 `.npy` file with any shape in its header."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def mutate_archive(data: bytes, rng: random.Random) -> bytes:
    """Damage members of an archive and its metadata note, with correct checksums."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(result, "w") as target:
        names = source.namelist()
        victims = set(rng.sample(names, k=min(rng.choice((0, 1, 3)), len(names))))
        dropped = kind_of(rng.choice(names)) if rng.random() < 0.15 else None
        block = f"encoderblock_{rng.randrange(2)}/" if rng.random() < 0.1 else None
        for name in names:
            member = bytearray(source.read(name))
            if kind_of(name) == dropped or (block and block in name):
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
    """Remove one kind of tensors, or damage the header."""
    if rng.random() < 0.3:
        return drop_kind(data, rng)
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
    """Damage a file according to its format, or at random bytes."""
    if rng.random() < 0.4:
        return mutate(data, rng)
    if name.endswith(".json"):
        return json.dumps(mutate_json(json.loads(data), rng)).encode()
    if data[:2] == b"PK":
        return mutate_archive(data, rng)
    return mutate_safetensors(data, rng) if name.endswith(".safetensors") else mutate(data, rng)

"""Mutations of input files, specific to each format so that inputs get past the first check."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow

from tests.stress.fuzzing.inputs import LINK, Files

MOST = 2**17  # bytes of an input
_DEEP = "@deep:"  # stands for brackets in brackets
_BOMB = 2**28  # bytes that a bomb expands to
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    255,
    256,
    1000,
    65_535,
    10**6,
    2**31 - 1,
    2**31,
    -(2**31),
    2**32,
    2**63 - 1,
    2**63,
    -(2**63),
    10**12,
    10**30,
    0.5,
    -0.0,
    1e-300,
    1e300,
    float("inf"),
    float("-inf"),
    float("nan"),
)
WORDS = (
    "",
    " ",
    "\t",
    "\n",
    "\r",
    "\0",
    "\x1b[31m",
    "\ud800",
    "\u2028",
    "\ufeff",
    "'",
    '"',
    ",",
    ".",
    "=",
    "-",
    "[",
    "{",
    "../../etc/passwd",
    "/etc/passwd",
    "/dev/zero",
    "hub:a/b",
    "http://127.0.0.1:9/x",
    "null",
    "true",
    "nan",
    "1e400",
    "9" * 5000,
    "(a+)+$",
    "a" * 10_000,
    "x" * 300,
    "🎉",
    "é",
    "ß",
    "I-",
    "B-X",
    "-DOCSTART-",
    "__class__",
    "!!python/name:os.system",
    "&a [*a]",
    "*a",
    "{a: 1}",
    "\\",
    "%s",
    "{}",
    "<unk>",
    "</s>",
    "[MASK]",
    "▁",
)


def mutated(files: Files, random: Random) -> dict[str, bytes]:
    """Mutate files by a few faults."""
    made = dict(files)
    for _ in range(random.choice((1, 1, 1, 2, 3, 5))):
        if not made or random.random() < 0.04:
            _rearrange(made, random)
            continue
        name = random.choice(sorted(made))
        made[name] = harmed(name, made[name], random)[:MOST]
    return made


def harmed(name: str, content: bytes, random: Random) -> bytes:
    """Mutate a file by a fault of its format, or occasionally by any fault."""
    kinds = [kind for ending, kind in _KINDS if re.search(ending, name)]
    for kind in [*kinds[:1], _text] if random.random() < 0.85 else [random.choice((_bytes, _text))]:
        try:
            return kind(content, random)
        except Exception:  # too damaged for a mutation of its format
            continue
    return _bytes(content, random)


def _rearrange(files: dict[str, bytes], random: Random) -> None:
    """Remove, swap, link or rename files."""
    names = sorted(files)
    if not names:
        files["a"] = b""
        return
    name, other = random.choice(names), random.choice(names)
    match random.randrange(5):
        case 0:
            del files[name]
        case 1:
            files[name] = files[other]
        case 2:
            files[name] = LINK + random.choice(
                (b"/etc/passwd", b"/dev/zero", b".", b"..", b"nowhere", name.encode(errors="replace"))
            )
        case 3:
            files[name + random.choice((".gz", "\udce9", "x" * 200, " "))] = files.pop(name)
        case 4:
            files[name] = b""


def _bytes(content: bytes, random: Random) -> bytes:
    data, at = bytearray(content), random.randrange(len(content) + 1)
    match random.randrange(7):
        case 0 if data:
            data[at % len(data)] ^= 1 << random.randrange(8)
        case 1:
            del data[at:]
        case 2:
            del data[at : at + random.choice((1, 2, 4, 100))]
        case 3:
            data[at:at] = data[at : at + random.choice((1, 8, 64, 1000))] * random.choice((1, 2, 100))
        case 4:
            width = random.choice((1, 2, 4, 8))
            number = random.choice((0, 1, 2**7, 2**15, 2**31, 2**63, 2**64 - 1, random.getrandbits(64))) % 2 ** (
                8 * width
            )
            data[at : at + width] = number.to_bytes(width, random.choice(("little", "big")))
        case 5:
            data[at : at + 4] = random.randbytes(4)
        case _:
            data[at:at] = random.choice(WORDS).encode(errors="surrogatepass")
    return bytes(data)


def _text(content: bytes, random: Random) -> bytes:
    """Remove, repeat, move or join lines, or insert other words."""
    lines = content.split(b"\n")
    row, other = random.randrange(len(lines)), random.randrange(len(lines))
    word = random.choice([*WORDS, *map(str, NUMBERS)]).encode(errors="surrogatepass")
    cells = re.split(rb"([\t ,=:])", lines[row])
    match random.randrange(8):
        case 0:
            del lines[row]
        case 1:
            lines[row:row] = [lines[other]] * random.choice((1, 2, 100))
        case 2:
            lines[row], lines[other] = lines[other], lines[row]
        case 3:
            lines[row : row + 2] = [b"".join(lines[row : row + 2])]
        case 4:
            lines[row] = word
        case 5:
            cells[random.randrange(len(cells))] = word
            lines[row] = b"".join(cells)
        case 6:
            at = random.randrange(len(lines[row]) + 1)
            lines[row] = lines[row][:at] + word + lines[row][at:]
        case _:
            lines[row] *= random.choice((0, 2, 100, 10_000))
    return b"\n".join(lines)


def _json(content: bytes, random: Random) -> bytes:
    return _dumped(_other(json.loads(content), random), random)


def _jsonl(content: bytes, random: Random) -> bytes:
    lines = content.split(b"\n")
    row = random.choice([i for i, line in enumerate(lines) if line.strip()])
    lines[row] = _json(lines[row], random)
    return b"\n".join(lines)


def _other(value: Any, random: Random) -> Any:
    """Replace, remove or repeat one part of a value, at any depth."""
    if isinstance(value, dict) and value and random.random() < 0.9:
        key = random.choice(sorted(value, key=str))
        match random.randrange(10):
            case 0:
                return {k: v for k, v in value.items() if k != key}
            case 1:
                return {**value, random.choice(WORDS): value[key]}
            case 2:
                return {**value, key: value[random.choice(sorted(value, key=str))]}
            case _:
                return {**value, key: _other(value[key], random)}
    if isinstance(value, list) and value and random.random() < 0.85:
        at = random.randrange(len(value))
        match random.randrange(8):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return value + value[at:] * random.choice((1, 100))
            case _:
                return [*value[:at], _other(value[at], random), *value[at + 1 :]]
    return _leaf(value, random)


def _leaf(value: Any, random: Random) -> Any:
    match random.randrange(8):
        case 0 | 1 if isinstance(value, int | float):
            return random.choice(
                (-value, value + 1, value - 1, value * 2, value * 10**6, float(value), str(value), not value)
            )
        case 0 | 1 if isinstance(value, str):
            return random.choice((value[1:], value * 2, value + random.choice(WORDS), value.upper(), [value]))
        case 2 | 3:
            return random.choice(NUMBERS)
        case 4:
            return random.choice(WORDS)
        case 5:
            return random.choice((None, True, False, [], {}, [value], {"a": value}, [None], [[]]))
        case 6:
            return random.choice(([value] * 1000, list(range(100)), {str(i): i for i in range(100)}))
        case _:
            return f"{_DEEP}{random.choice((10, 200, 900, 980, 990, random.randrange(900, 1000), 100_000))}"


def _dumped(value: Any, random: Random) -> bytes:
    text = json.dumps(value, ensure_ascii=random.random() < 0.5)
    open_, close = random.choice(("[]", ('{"a":', "}")))

    def deep(match: re.Match[str]) -> str:
        times = int(match[1])
        return open_ * times + "1" + close * times

    text = re.sub(f'"{_DEEP}(\\d+)"', deep, text)
    if random.random() < 0.03:  # a key that is there twice
        text = re.sub(r"\{(\"[^\"]*\": ?[^,{}\[\]]*),", r"{\1, \1,", text, count=1)
    return text.encode(errors="surrogatepass")


def _gzip(content: bytes, random: Random, inner: str) -> bytes:
    if random.random() < 0.2:
        return _bytes(content, random)
    if random.random() < 0.005:
        return gzip.compress(b"a" * _BOMB, 9)
    return gzip.compress(harmed(inner, gzip.decompress(content), random), 1, mtime=0)


def _zstd(content: bytes, random: Random, inner: str) -> bytes:
    if random.random() < 0.2:
        return _bytes(content, random)
    if random.random() < 0.005:
        return pyarrow.compress(b"a" * _BOMB, "zstd", asbytes=True)
    with pyarrow.CompressedInputStream(pyarrow.BufferReader(content), "zstd") as stream:
        whole = stream.read()
    return pyarrow.compress(harmed(inner, whole, random), "zstd", asbytes=True)


def _safetensors(content: bytes, random: Random) -> bytes:
    """Mutate the JSON header, with a correct or wrong length, or the numbers after it."""
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    if random.random() < 0.15:
        return content[: 8 + size] + _bytes(data, random)
    if random.random() < 0.3:  # another shape of a tensor that its data have, too
        tensors = [name for name in header if name != "__metadata__"]
        entry = header[random.choice(tensors)]
        entry["shape"] = random.choice(
            ([], [0], [0, 2**62], [*entry["shape"], 1], entry["shape"][::-1], [2**31, 2**31, 0], [-1])
        )
        if 0 in entry["shape"]:
            entry["data_offsets"] = [entry["data_offsets"][0]] * 2
    else:
        header = _other(header, random)
    text = _dumped(header, random)
    stated = len(text) if random.random() < 0.9 else random.choice((0, 7, len(text) + 1, 2**31, 2**63, 2**64 - 1))
    return stated.to_bytes(8, "little") + text + data


def _png(content: bytes, random: Random) -> bytes:
    """Replace the content of a chunk and correct its checksum."""
    chunks, at = [], 8
    while at + 8 <= len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        chunks.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + length]))
        at += 12 + length
    which = random.randrange(len(chunks))
    kind, data = chunks[which]
    match random.randrange(4):
        case 0:
            sizes = (0, 1, 2, 9, 1000, 10_000, 20_000, 65_535, 2**31 - 1, 2**32 - 1)
            chunks[0] = b"IHDR", struct.pack(">II", random.choice(sizes), random.choice(sizes)) + chunks[0][1][8:]
        case 1:
            chunks[which:which] = [(random.choice((b"zTXt", b"iCCP", b"eXIf", b"acTL", b"fcTL", b"fdAT", kind)), data)]
        case _:
            chunks[which] = kind, _bytes(data, random)
    parts = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks]
    return content[:8] + b"".join(parts)


class _Runs:
    """Object whose unpickling runs code."""

    def __reduce__(self) -> Any:
        return exec, ("open('owned', 'w').close()",)


def _torch(content: bytes, random: Random) -> bytes:
    """Mutate a torch.save file: replace an entry of the archive, or insert a pickle that runs code."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(made, "w") as new:
        which = random.choice(old.namelist())
        for name in old.namelist():
            data = old.read(name)
            if name == which:
                data = (
                    pickle.dumps(_Runs()) if name.endswith(".pkl") and random.random() < 0.2 else _bytes(data, random)
                )
            new.writestr(name, data)
    return made.getvalue()


Kind = Callable[[bytes, Random], bytes]
_KINDS: tuple[tuple[str, Kind], ...] = (
    *((rf"{ending}\.gz$", lambda c, r, e=ending: _gzip(c, r, e)) for ending in (".jsonl", ".json", "")),
    *((rf"{ending}\.zst$", lambda c, r, e=ending: _zstd(c, r, e)) for ending in (".jsonl", ".json", "")),
    (r"\.jsonl$", _jsonl),
    (r"\.json$", _json),
    (r"\.safetensors$", _safetensors),
    (r"\.png$", _png),
    (r"\.bin$", _torch),
    (r"\.(parquet|spm|model|tokens|corpus|jpe?g|gif|bmp|webp|tiff?|jp2|ppm|pgm)$|ubyte$", _bytes),
)

"""Every image is decoded once, in threads, before any is used, so that a faulty one stops a run before it trains.

The outcomes may be kept in a file, so that a run that starts again, or is resumed, need not decode all images again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from manyheads.data.images.decoding import MOST_PIXELS, ImageFault, decode
from manyheads.data.images.files import Entry
from manyheads.data.images.store import Stored
from manyheads.data.images.tar import Member
from manyheads.data.readers.labelled import label_name, number_fault, score_fault
from manyheads.data.readers.splits import half_character
from manyheads.errors import UserError
from manyheads.files import parse_json

MOST_BYTES = 2**30  # of an image's file; /proc/kcore, to which a link may lead, says 2**47
SMALL = 2**20  # bytes of pixels of an image that is small enough to be kept decoded
_LISTED = 8  # labels that an error names
_AT_ONCE = 16  # images that a thread decodes at a time


class Check(NamedTuple):
    """What is known of a decoded image: a hash of its pixels, (width, height) upright, the mode of its file."""

    key: str
    size: tuple[int, int]
    mode: str
    nbytes: int  # of its pixels
    notes: list[str]
    stamp: str = ""  # identifies the image in the file of checks; empty: it is not kept there
    pixels: NDArray[np.uint8] | None = None  # (Y, X) or (Y, X, 3), of a small image that is to stay decoded


def remembered(file: Path) -> dict[str, Check]:
    """The checks in a file by their stamps: the path, size and time of an image's file or, where it is a cell of a
    table, a hash of its bytes. A damaged line is the same as none."""
    checks: dict[str, Check] = {}
    for line in file.read_bytes().splitlines() if file.is_file() else ():
        try:
            key, size, *others = parse_json(line)
            check = Check(key, tuple(size), *others)
            checks[check.stamp] = check
        except (ValueError, TypeError):
            continue
    return checks


def remember(file: Path, checks: Iterable[Check]) -> None:
    """Adds to the file. Raises UserError where it cannot be written."""
    lines = [json.dumps(check[:-1]) for check in checks if check.stamp]
    try:
        with file.open("a") as memory:  # begins with a line's end: the last line may have been cut short
            memory.write("".join(f"\n{line}" for line in lines))
    except OSError as error:
        raise UserError(f"{file}: cannot write: {error.strerror}; make room") from error


def checked(
    entries: Iterable[Entry], names: Sequence[str], known: Mapping[str, Check], room: int
) -> Iterator[tuple[Entry, Check | ImageFault]]:
    """Each entry with its check or its fault. A few images at a time are decoded in threads, as Pillow releases
    Python's lock.

    known  earlier checks, by their stamps
    room   bytes of pixels that the checks may hold together. The first image that is not small or does not fit ends
           this: it and all later ones come without pixels, and those in `known` are not decoded again.
    """
    threads, rest = os.cpu_count() or 1, iter(entries)
    large: dict[str, Check | ImageFault] = {}  # and faulty ones: a table may name an image in many rows

    def check(part: list[Entry]) -> list[Check | ImageFault]:
        return [_check(entry, names, known, large, room) for entry in part]

    with ThreadPoolExecutor(threads) as pool:
        while window := list(islice(rest, _AT_ONCE * threads)):
            parts = [window[i : i + _AT_ONCE] for i in range(0, len(window), _AT_ONCE)]
            for part, results in zip(parts, pool.map(check, parts), strict=True):
                for entry, result in zip(part, results, strict=True):
                    if isinstance(result, Check):
                        room = room - result.nbytes if result.nbytes <= SMALL else -1
                        result = result if room >= 0 else result._replace(pixels=None)
                    yield entry, result


def _check(
    entry: Entry, names: Sequence[str], known: Mapping[str, Check], large: dict[str, Check | ImageFault], room: int
) -> Check | ImageFault:
    if fault := fault_of(entry, names):
        return fault
    if isinstance(entry.source, np.ndarray):
        return check_pixels(entry.source, "L")
    assert entry.source is not None
    stamp = _stamp(entry.source)
    if stamp in known and known[stamp].nbytes > min(SMALL, room):
        return known[stamp]
    if stamp in large:
        return large[stamp]
    outcome = _decoded(entry.source, entry.place, stamp)
    if stamp and (isinstance(outcome, ImageFault) or outcome.pixels is None):
        large[stamp] = outcome
    return outcome


def _decoded(source: bytes | Path | Member, place: str, stamp: str) -> Check | ImageFault:
    try:
        image, mode, notes = decode(content(source))
        return check_pixels(np.asarray(image), mode, notes)._replace(stamp=stamp)
    except ImageFault as error:  # as a new one: this one holds the frames that raised it, and with them the image
        if isinstance(source, Path) and str(source) != place:  # named by a row of another file
            return ImageFault(f"{source}: {error.fault}", error.hint)
        return ImageFault(error.fault, error.hint)


def check_pixels(pixels: NDArray[np.uint8], mode: str, notes: Sequence[str] = ()) -> Check:
    """Of pixels (Y, X) or (Y, X, 3)."""
    digest = blake2b(repr(pixels.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(pixels).reshape(-1).data)
    small = pixels if pixels.nbytes <= SMALL else None
    size = (pixels.shape[1], pixels.shape[0])
    return Check(digest.hexdigest(), size, mode, pixels.nbytes, list(notes), pixels=small)


def open_image(
    source: Stored | Path | Member | str | bytes | NDArray[np.uint8], most: int = MOST_PIXELS
) -> Image.Image:  # fmt: skip
    """The image in a file, in the bytes of one, or of pixels: upright, in mode L or RGB. Raises UserError, also for a
    file of more than `most` pixels, before it is decoded."""
    if isinstance(source, Stored):
        source = source.image()
    if isinstance(source, np.ndarray):
        return Image.fromarray(source)
    if isinstance(source, str):
        if not source.strip():
            raise UserError(f"the path {source!r} is empty: give the path of an image")
        source = Path(source)
    try:
        return decode(content(source), most).image
    except ImageFault as error:
        place = f"{source}: " if isinstance(source, Path) else f"{source.tar}: " if isinstance(source, Member) else ""
        raise UserError(f"{place}{error.fault}; {error.hint}") from None


def listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")


def _stamp(source: bytes | Path | Member) -> str:
    if isinstance(source, bytes):
        return blake2b(source, digest_size=16).hexdigest()
    file, place = (source.tar, f"\0{source.start}\0{source.size}") if isinstance(source, Member) else (source, "")
    try:
        status = file.stat()
    except (OSError, ValueError):  # opening it says why
        return ""
    described = f"{file.absolute()}\0{status.st_size}\0{status.st_mtime_ns}{place}"
    return blake2b(os.fsencode(described), digest_size=16).hexdigest()


def content(source: bytes | Path | Member) -> bytes:
    """The bytes of an image's file. Raises ImageFault."""
    if isinstance(source, bytes):
        return source
    try:
        if isinstance(source, Member):
            return source.read()
        if source.exists() and not source.is_file() and not source.is_dir():
            raise ImageFault("no regular file (a pipe or a device)", "give the path of an image")
        if (size := source.stat().st_size) > MOST_BYTES:
            raise ImageFault(f"{size:,} bytes, more than any image's", "remove it")
        return source.read_bytes()
    except FileNotFoundError:
        if isinstance(source, Member):
            raise ImageFault("no such file any more", "leave it where it is during a run") from None
        link = f"a broken link, to {source.readlink()}" if source.is_symlink() else "no such file"
        raise ImageFault(link, "give the path of an image") from None
    except IsADirectoryError:
        raise ImageFault("a directory, not an image", "give the path of an image") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        reason = getattr(error, "strerror", None) or error
        raise ImageFault(f"cannot be read ({reason})", "make it readable, or remove it") from None


def fault_of(entry: Entry, names: Sequence[str]) -> ImageFault | None:
    """Why an entry cannot be used, as far as that is known without opening the image."""
    label = entry.label
    if entry.fault:
        return entry.fault
    if fault := score_fault(label, "label"):
        return ImageFault(*fault)
    if isinstance(label, bool) or not isinstance(label, str | int) or not str(label).strip():
        return ImageFault(f"the label is {label!r}", "write a name or an integer from 0 on")
    if str(label) == "-1":
        return ImageFault("the label -1 means that there is none", "label or remove the image")
    if re.fullmatch(r"-\d+", str(label).strip()):
        return ImageFault(f"the label is {label!r}", "count labels from 0 on, or write names")
    if half_character(str(label)) is not None:
        return ImageFault(f"the label {label!r} is no Unicode text", "correct it")
    if fault := number_fault(str(label).strip()):
        return ImageFault(*fault)
    if names and label_name(label, names) not in names:
        return ImageFault(f"label {str(label)!r} is none of {listed(names)} (0 to {len(names) - 1})", "correct it")
    return None

"""Images with a label each, read strictly: every one is decoded once, so that what cannot be used is told at once.

`files.py` names the forms that are read, `decoding.py` says how each kind of image becomes grey or RGB.
A directory holds a corpus per split: `train`, `val`|`valid`|`validation`|`dev`, `test` (or `t10k...`); a folder of
class folders alone is training data.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from manyheads.data.images.decoding import ImageFault, decode
from manyheads.data.images.files import Entry, Source, entries, find_splits
from manyheads.data.labelled import label_order
from manyheads.data.splits import SplitData, held_out

KEPT_DECODED = 256 * 2**20  # bytes of pixels up to which a corpus stays decoded in memory, if none is a photograph:
_SMALL = 2**20  # bytes of pixels of an image
_LISTED = 8  # labels that an error names
_AT_ONCE = 16  # images that a thread decodes at a time


@dataclass(frozen=True)
class ImageData:
    """Images with their labels, decoded when asked for.

    keys    a hash of each image's pixels: the same for copies, however they are encoded
    sizes   (width, height) of each, upright; `modes` are those that the files have
    names   the different labels in the order that a model counts them
    places  where each was read, as errors name it
    skips   what was left out: the reason, and how many
    notes   what is odd about images that are used, a line each
    """

    sources: list[Source]
    labels: list[str]
    keys: list[str]
    sizes: list[tuple[int, int]]
    modes: list[str]
    names: tuple[str, ...]
    places: list[str] = field(default_factory=list)
    file: Path | None = None
    skips: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"ImageData(images: {len(self):,}, labels: {len(set(self.labels)):,}, {self.file})"

    def subset(self, chosen: Sequence[int]) -> ImageData:
        return replace(
            self,
            sources=[self.sources[i] for i in chosen],
            labels=[self.labels[i] for i in chosen],
            keys=[self.keys[i] for i in chosen],
            sizes=[self.sizes[i] for i in chosen],
            modes=[self.modes[i] for i in chosen],
            places=[self.places[i] for i in chosen] if self.places else [],
        )

    def place(self, index: int) -> str:
        return self.places[index] if self.places else f"image {index + 1:,}"

    def image(self, index: int) -> Image.Image:
        """An image in mode L or RGB. Raises ValueError where its file has changed since it was read."""
        return open_image(self.sources[index])


class Seen(NamedTuple):
    """What one look at an image tells."""

    key: str
    size: tuple[int, int]
    mode: str
    pixels: NDArray[np.uint8] | None  # (Y, X) or (Y, X, 3); None for a large image, so that few are in memory at once
    notes: list[str]


def listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")


def open_image(source: Source | str) -> Image.Image:
    """The image in a file, in the bytes of one, or of pixels: upright, in mode L or RGB. Raises ValueError."""
    if isinstance(source, np.ndarray):
        return Image.fromarray(source)
    if isinstance(source, str):
        if not source.strip():
            raise ValueError(f"the path {source!r} is empty: give the path of an image")
        source = Path(source)
    try:
        return decode(_bytes(source)).image
    except ImageFault as error:
        place = f"{source}: " if isinstance(source, Path) else ""
        raise ValueError(f"{place}{error.fault}; {error.remedy}") from None


def read_images(path: str | Path, *, names: Sequence[str] = (), skip_bad_lines: bool = False) -> ImageData:
    """Reads one corpus, in any of the forms of `files.py`, and decodes every image once.

    names           what the labels 0, 1, ... are called, if `labels.txt` does not say so
    skip_bad_lines  leave out what cannot be used and count it

    Raises FileNotFoundError or a one-line ValueError that names file, row and remedy.
    """
    there, named = entries(path)
    names = tuple(names) or named
    found = ImageData([], [], [], [], [], names, [], None if str(path).startswith("hub:") else Path(path))
    pixels: list[NDArray[np.uint8]] | None = []
    room, counted = KEPT_DECODED, Counter[str]()
    for entry, seen in _examined(there, names):
        if not isinstance(seen, Seen):
            if not skip_bad_lines:
                remedy = seen.remedy.replace(", or ", ", ")
                raise ValueError(f"{entry.place}: {seen.fault}; {remedy}, or skip such images with --skip-bad-lines")
            counted[f"{path}: {seen.fault}"] += 1
            continue
        assert entry.source is not None
        found.sources.append(entry.source)
        found.labels.append(_name(entry.label, names))
        found.keys.append(seen.key)
        found.sizes.append(seen.size)
        found.modes.append(seen.mode)
        found.places.append(entry.place)
        found.notes.extend(f"{entry.place}: {note}" for note in seen.notes)
        if pixels is not None and seen.pixels is not None and (room := room - seen.pixels.nbytes) >= 0:
            pixels.append(seen.pixels)
        else:
            pixels = None
    if not found.labels:
        skipped = (
            f" (skipped: {sum(counted.values()):,}, such as {next(iter(counted)).removeprefix(f'{path}: ')})"
            if counted
            else ""
        )
        raise ValueError(f"{path}: no usable image in it{skipped}; give data that have some")
    return replace(
        found,
        sources=found.sources if pixels is None else list(pixels),
        names=names or label_order(found.labels),
        skips=dict(counted),
    )


def read_image_splits(
    data: str,
    *,
    names: Sequence[str] = (),
    validation: str | None = None,
    test: str | None = None,
    skip_bad_lines: bool = False,
) -> SplitData[ImageData]:
    """The splits of a directory or of `hub:NAME`, or one corpus as the training data.

    Without validation data 5% of the training data are held out by a hash of their pixels. Labels of validation or test
    data that training does not have are a fault: no model could answer them.
    """
    found = find_splits(str(data), validation=validation, test=test)
    assert found.train is not None

    def read(path: str) -> ImageData:
        return read_images(path, names=names, skip_bad_lines=skip_bad_lines)

    train = read(found.train)
    if len(set(train.labels)) < 2:
        raise ValueError(f"{found.train}: one label only, {train.labels[0]!r}: there is nothing to tell apart")
    tested = [with_labels_of(train, read(path), skip_bad_lines) for path in found.test]
    paths = tuple(path if path.startswith("hub:") else str(Path(path).absolute()) for path in found.test)
    test_data = tested[0] if tested else None
    if found.validation is not None:
        return SplitData(train, with_labels_of(train, read(found.validation), skip_bad_lines), test_data, paths)
    try:
        kept, held = held_out(train.keys, what="image")
    except ValueError as error:
        raise ValueError(f"{found.train}: {error}") from None
    return SplitData(train.subset(kept), train.subset(held), test_data, paths, len(held))


def with_labels_of(train: ImageData, data: ImageData, skip_bad_lines: bool = False) -> ImageData:
    """`data`, whose labels the training data all have; else a ValueError, or those without are left out."""
    known = set(train.labels)
    shown = listed([name for name in train.names if name in known])
    unseen = [i for i, label in enumerate(data.labels) if label not in known]
    if not unseen:
        return replace(data, names=train.names)
    told = f"label {data.labels[unseen[0]]!r} does not occur in the training data, which have {shown}"
    if not skip_bad_lines or len(unseen) == len(data):
        raise ValueError(f"{data.place(unseen[0])}: {told} (such images: {len(unseen):,}); correct it")
    gone = set(unseen)
    kept = data.subset([i for i in range(len(data)) if i not in gone])
    skips = {**data.skips, f"{data.file}: labels not in the training data": len(unseen)}
    return replace(kept, names=train.names, skips=skips)


def digits(seed: int = 0) -> SplitData[ImageData]:
    """scikit-learn's 1,797 handwritten digits, 8 x 8, grey: about a fifth of them, always the same, are the test data,
    and a tenth of the others, chosen by the seed, the validation data."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ValueError(f"the digits need {error.name}: pip install 'manyheads[vision]'") from None
    loaded = load_digits()
    pixels = np.round(loaded.images * (255 / 16)).astype(np.uint8)  # (1797, 8, 8), published as 0 to 16
    seen = [_seen(image, "L") for image in pixels]
    labels, names = [str(digit) for digit in loaded.target], tuple(map(str, range(10)))
    keys, sizes, modes = [s.key for s in seen], [s.size for s in seen], [s.mode for s in seen]
    everything = ImageData(list(pixels), labels, keys, sizes, modes, names)
    rest, tested = held_out(everything.keys, 0.2)
    kept, held = held_out([f"{seed} {everything.keys[i]}" for i in rest], 0.1)
    validation = everything.subset([rest[i] for i in held])
    return SplitData(everything.subset([rest[i] for i in kept]), validation, everything.subset(tested))


def _bytes(source: bytes | Path) -> bytes:
    if isinstance(source, bytes):
        return source
    try:
        return source.read_bytes()
    except FileNotFoundError:
        link = f"a broken link, to {source.readlink()}" if source.is_symlink() else "no such file"
        raise ImageFault(link, "give the path of an image") from None
    except IsADirectoryError:
        raise ImageFault("a directory, not an image", "give the path of an image") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        reason = getattr(error, "strerror", None) or error
        raise ImageFault(f"cannot be read ({reason})", "make it readable, or remove it") from None


def _seen(pixels: NDArray[np.uint8], mode: str, notes: Sequence[str] = ()) -> Seen:
    said = repr(pixels.shape).encode()
    key = blake2b(said + np.ascontiguousarray(pixels).tobytes(), digest_size=16).hexdigest()
    kept = pixels if pixels.nbytes <= _SMALL else None
    return Seen(key, (pixels.shape[1], pixels.shape[0]), mode, kept, list(notes))


def _look(entry: Entry, names: Sequence[str]) -> Seen | ImageFault:
    if entry.fault or entry.source is None:
        return ImageFault(entry.fault, entry.remedy)
    if fault := _label_fault(entry.label, names):
        return fault
    try:
        if isinstance(entry.source, np.ndarray):
            return _seen(entry.source, "L")
        image, mode, notes = decode(_bytes(entry.source))
        return _seen(np.asarray(image), mode, notes)
    except ImageFault as error:
        if isinstance(entry.source, Path) and str(entry.source) != entry.place:  # named by a row of another file
            return ImageFault(f"{entry.source}: {error.fault}", error.remedy)
        return error


def _examined(there: Iterable[Entry], names: Sequence[str]) -> Iterator[tuple[Entry, Seen | ImageFault]]:
    """Each entry and what it holds, decoded in threads (Pillow lets go of Python's lock), few at a time."""
    threads, rest = os.cpu_count() or 1, iter(there)

    def look_at(part: list[Entry]) -> list[Seen | ImageFault]:
        return [_look(entry, names) for entry in part]

    with ThreadPoolExecutor(threads) as pool:
        while some := list(islice(rest, _AT_ONCE * threads)):
            parts = [some[i : i + _AT_ONCE] for i in range(0, len(some), _AT_ONCE)]
            for part, looks in zip(parts, pool.map(look_at, parts), strict=True):
                yield from zip(part, looks, strict=True)


def _label_fault(label: Any, names: Sequence[str]) -> ImageFault | None:
    if isinstance(label, bool) or not isinstance(label, str | int) or not str(label).strip():
        return ImageFault(f"the label is {label!r}", "write a name or an integer from 0 on")
    if str(label) == "-1":
        return ImageFault("the label -1 means that there is none", "label or remove the image")
    if re.fullmatch(r"-\d+", str(label).strip()):
        return ImageFault(f"the label is {label!r}", "count labels from 0 on, or write names")
    if not _encodable(str(label)):
        return ImageFault(f"the label {label!r} is no Unicode text", "correct it")
    if names and _name(label, names) not in names:
        return ImageFault(f"label {str(label)!r} is none of {listed(names)} (0 to {len(names) - 1})", "correct it")
    return None


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name(label: str | int, names: Sequence[str]) -> str:
    text = str(label).strip()
    return names[int(text)] if names and text.isdecimal() and int(text) < len(names) else text

"""Data set of labeled images.

See `files.py` for the file formats, `decoding.py` for the conversion to grayscale or RGB, and `checking.py` for the
validation of every image.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from manyheads.core.config import LabelType, TargetKind
from manyheads.data.images import checking
from manyheads.data.images.checking import check_images
from manyheads.data.images.files import HUB, Columns, labeled_samples
from manyheads.data.images.store import SKIPPED_FILE, Store, Stored
from manyheads.data.images.tar import Member, Sample
from manyheads.data.readers.dataset import Dataset
from manyheads.data.readers.label_lists import check_separators
from manyheads.data.readers.labeled import common_type, label_sets, labels_of, parse_target
from manyheads.data.readers.memory import Rows
from manyheads.data.readers.rows import BadRow, skip_option
from manyheads.data.readers.splits import SplitData, held_out, logged
from manyheads.errors import UserError, extra, shown

# If all images of a corpus are small and need at most this number of bytes, they stay decoded in memory.
MAX_DECODED_BYTES = 256 * 2**20
_CHECKS_FILE = "checked.jsonl"  # name of the file with saved validation results, in the folder `cache_folder`


class Item(NamedTuple):
    """Image with its label."""

    source: Path | Member | Stored | NDArray[np.uint8]
    label: str
    key: str  # hash of the pixels; copies of an image have equal keys, even if they are encoded differently
    size: tuple[int, int]  # (width, height) of the upright image
    mode: str  # Pillow mode of the image file
    place: str = ""  # location of the image, for error messages


@dataclass(frozen=True, repr=False)
class ImageData(Dataset):
    """Data set of images with labels. An image is decoded when it is accessed.

    items       images with their labels
    names       distinct labels in the order of class indices
    notes       warnings of the decoder about images that are used nevertheless, one per line
    target      kind of label: one class, several classes, or a number
    label_type  type that the labels have in the file or in memory; `Item.label` is always a string
    """

    columns: ClassVar[tuple[str, ...]] = ("items",)

    items: list[Item]
    names: tuple[str, ...]
    notes: list[str] = field(default_factory=list)
    target: TargetKind = "classes"
    label_type: LabelType = "str"

    def __repr__(self) -> str:
        return f"ImageData(images: {len(self):,}, labels: {len(set(self.labels)):,}, {self.file})"

    @cached_property
    def labels(self) -> list[str]:
        return [item.label for item in self.items]

    @cached_property
    def keys(self) -> list[str]:
        return [item.key for item in self.items]

    def place(self, index: int) -> str:
        return self.items[index].place or f"image {index + 1:,}"

    def image(self, index: int) -> Image.Image:
        """Return an image in mode L or RGB.

        Raises UserError if the image file has changed since the data set was created.
        """
        return checking.open_image(self.items[index].source)


def read_images(
    path: str | Path | Rows,
    *,
    names: Sequence[str] = (),
    columns: Columns | None = None,
    skip_bad_lines: bool = False,
    cache_folder: Path | None = None,
    follows: bool = False,
    target: TargetKind = "classes",
    only: Collection[int] | None = None,
) -> ImageData:
    """Read one corpus, in any of the formats of `files.py`, and decode every image once to validate it.

    names           label names, if labels are the numbers 0, 1, ... and there is no `labels.txt`
    columns         names of the table columns, if they differ from the defaults
    skip_bad_lines  if True, leave out and count unusable images. If False, they are errors
    cache_folder    folder for saved validation results, so that unchanged images need not be decoded again. A temporary
                    file in it stores images that are not in separate files. If None, results are not saved
    follows         True if another process has read the same data and writes to `cache_folder`; this process then
                    writes nothing to it
    target          kind of label, as in `read_labeled`
    only            positions of the images to read, counted from 0. If None, all images are read

    Raises FileNotFoundError, or a one-line UserError that names the file, the row and a remedy.
    """
    rows, own_names = labeled_samples(path, columns or Columns())
    names = tuple(names) or own_names
    rows = rows if only is None else (row for number, row in enumerate(rows) if number in only)
    known = {} if cache_folder is None else checking.read_checks(cache_folder / _CHECKS_FILE)
    found = _Collector(path, skip_bad_lines, None if follows else cache_folder, known)
    rows = _with_targets(rows, names, target, found.types)
    checked = check_images(rows, known, MAX_DECODED_BYTES)
    try:
        for sample, check in logged(checked, f"checking images of {path}"):
            found.add(sample, check)
    finally:
        # After an error, the generator waits for its threads when it is deleted. The garbage collector may do so while
        # another thread starts, which would then wait forever for a lock of the module `threading`.
        checked.close()
        found.save()
    items = found.items()
    label_type = common_type(found.types, names)
    names = _class_names(names, [item.label for item in items], target, path)
    file = None if str(path).startswith(HUB) else Path(path)
    lines = found.lines if all(found.lines) else []
    return ImageData(items, names, found.notes, target, label_type, file=file, lines=lines, skips=found.counts())


class _Collector:
    """Collector of the validated images of one corpus: usable images, and locations of skipped images by fault.

    scratch  folder for saved validation results, and for a temporary file of images. If None, results are not saved
    known    validation results that were saved before, by image identifier
    """

    def __init__(
        self, path: str | Path | Rows, skip: bool, scratch: Path | None, known: Mapping[str, checking.Check]
    ) -> None:
        self._path, self._skip, self._scratch, self._known = path, skip, scratch, known
        self._items, self._skips, self._checks = list[Item](), dict[str, list[str]](), list[checking.Check]()
        self._encoded, self._decoded, self._pixels = Store(scratch), Store(scratch), list[Stored]()
        self.notes, self.types, self.lines = list[str](), set[type](), list[int]()

    def add(self, sample: Sample, check: checking.Check | BadRow) -> None:
        """Add an image, or skip it. Raises UserError for a fault if faulty images are not to be skipped."""
        if isinstance(check, BadRow):
            _skip_or_raise(sample, check, self._skips, self._skip, self._path)
            return
        if check.pixels is not None:
            self._pixels.append(self._decoded.add(check.pixels))
        if check.stamp not in self._known:
            self._checks.append(check._replace(pixels=None))
        assert sample.source is not None
        source = sample.source if isinstance(sample.source, Path | Member) else self._encoded.add(sample.source)
        self._items.append(Item(source, str(sample.label), *check[:3], sample.place))
        self.lines.append(sample.number)
        self.notes += [f"{sample.place}: {note}" for note in check.notes]

    def save(self) -> None:
        """Save the new validation results and the list of skipped images in the folder `scratch`."""
        if self._scratch is not None:
            checking.append_checks(self._scratch / _CHECKS_FILE, self._checks)
            skipped = [f"{place}: {fault}" for fault, places in self._skips.items() for place in places]
            checking.append_lines(self._scratch / SKIPPED_FILE, skipped)

    def items(self) -> list[Item]:
        """Return the usable images. Raises UserError if there are none."""
        if not self._items:
            raise _no_images_error(self._path, self._skips)
        if len(self._pixels) < len(self._items):
            return self._items
        # All images are small, and together they fit into memory.
        return [item._replace(source=source) for item, source in zip(self._items, self._pixels, strict=True)]

    def counts(self) -> dict[str, int]:
        """Return the number of skipped images by fault."""
        named = {fault: _named(places, self._path, self._scratch) for fault, places in self._skips.items()}
        return {f"{self._path}: {fault} ({named[fault]})": len(places) for fault, places in self._skips.items()}


def _class_names(names: tuple[str, ...], labels: Sequence[str], target: TargetKind, place: object) -> tuple[str, ...]:
    """Return the class names in class order: `names` if given, otherwise the distinct labels."""
    if target == "multi-label":
        check_separators(label_sets(labels, target), names, place)
    return names if names and target != "regression" else labels_of(labels, target)


def _with_targets(
    rows: Iterator[Sample], names: Sequence[str], target: TargetKind, types: set[type]
) -> Iterator[Sample]:
    """Yield the samples with their labels converted to strings, as `read_labeled` does (`parse_target`)."""
    for sample in rows:
        try:
            if sample.fault:
                raise sample.fault
            if target == "classes" and re.fullmatch(r"-([02-9]|\d\d+)", str(sample.label).strip()):
                raise BadRow(f"the label is {sample.label!r}", "use labels from 0, or names")
            yield sample._replace(label=parse_target(sample.label, "label", names, target, types))
        except BadRow as bad:
            yield sample._replace(fault=bad)


def _skip_or_raise(
    sample: Sample, fault: BadRow, skips: dict[str, list[str]], skip: bool, corpus: str | Path | Rows
) -> None:
    if not skip:
        hint = fault.hint.replace(", or ", ", ")
        option = skip_option(corpus, "images")
        raise UserError(f"{sample.place}: {fault.fault}; {hint}, or skip such images with {option}")
    skips.setdefault(fault.fault, []).append(sample.place)


def _named(places: Sequence[str], path: str | Path | Rows, folder: Path | None) -> str:
    names = shown([place.removeprefix(f"{path}/") for place in places])
    return f"{names}; all are listed in {folder / SKIPPED_FILE}" if "more" in names and folder is not None else names


def _no_images_error(path: str | Path | Rows, skips: Mapping[str, Sequence[str]]) -> UserError:
    total = sum(map(len, skips.values()))
    skipped = f" (skipped {total:,}, for example: {next(iter(skips))})" if skips else ""
    return UserError(f"{path}: found no usable image{skipped}; give data with images")


def digits(seed: int = 0) -> SplitData[ImageData]:
    """Return the training, validation and test data of scikit-learn's 1,797 handwritten digits (8 x 8, grayscale).

    A fixed fifth of the images is the test split. A tenth of the rest, selected by the seed, is the validation
    split.
    """
    with extra("vision", "the set of digits"):
        from sklearn.datasets import load_digits
    loaded = load_digits()
    # (1797, 8, 8) pixels; scikit-learn's values from 0 to 16 are scaled to 0 to 255
    pixels = np.round(loaded.images * (255 / 16)).astype(np.uint8)
    items = [
        Item(p, str(label), *checking.check_pixels(p, "L")[:3]) for p, label in zip(pixels, loaded.target, strict=True)
    ]
    everything = ImageData(items, tuple(map(str, range(10))))
    rest, test = held_out(everything.keys, 0.2)
    train, validation = held_out([f"{seed} {everything.keys[i]}" for i in rest], 0.1)
    rest_data = everything.subset(rest)
    return SplitData(rest_data.subset(train), rest_data.subset(validation), everything.subset(test))

"""Readers of images with boxes, in the formats of COCO and YOLO. Faults are reported with file and annotation.

COCO (Lin 2014): a JSON file with `images`, `categories` and `annotations`. A box is [left, top, width, height] in
pixels. Images are next to the file, in its folder `images`, or in a folder next to `annotations` that has the name
of the split, as in annotations/instances_val2017.json and val2017/.

YOLO: a folder of images below a folder `images`, and next to it a folder `labels` with a text file for each image. A
line is the class index, and center x, center y, width and height as fractions of the image's sides. The names of the
classes are in `data.yaml` or `classes.txt`.

A box must have a positive area, and lie inside its image except for rounding. An image without boxes is valid.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from manyheads.data.images.checking import check_images
from manyheads.data.images.files import PICTURES
from manyheads.data.images.objects import ObjectData, Scene
from manyheads.data.images.tar import Sample
from manyheads.data.readers.rows import BadRow
from manyheads.data.readers.splits import logged
from manyheads.errors import UserError, shown
from manyheads.files import read_json

ROUNDING = 1.0  # number of pixels by which a box may reach beyond its image
_COCO = 'expected a JSON object with "images", "annotations" and "categories"'


@dataclass
class _Faults:
    """Faults of a corpus: each is the place of an image or annotation, and what is wrong with it."""

    corpus: Path
    found: list[tuple[str, str]] = field(default_factory=list)

    def add(self, place: str, fault: str) -> None:
        self.found.append((place, fault))

    def counts(self, *, skip: bool) -> dict[str, int]:
        """Return the number of faulty images and annotations by fault. Raises UserError if they are not skipped."""
        kinds: dict[str, list[str]] = {}
        for place, fault in self.found:
            what, _, value = fault.partition(": ")
            short = place.removeprefix(f"{self.corpus}: ")
            kinds.setdefault(what, []).append(f"{short}: {value}" if value else short)
        if self.found and not skip:
            named = "; ".join(f"{what} ({shown(places)})" for what, places in kinds.items())
            raise UserError(
                f"{self.corpus}: {len(self.found):,} faulty images or annotations: {named}. Correct them, or leave them"
                " out with --skip-bad-lines (skip_bad_lines=True)"
            )
        return {f"{self.corpus}: {what} ({shown(places)})": len(places) for what, places in kinds.items()}


# File of an image, its number, its annotations, and its width and height if the corpus has them. An annotation has a
# place, a label or None, and a box (left, top, right, bottom) in pixels or in fractions of the image's sides
_Annotation = tuple[str, str | None, Sequence[float]]
_Listed = tuple[Path, int, list[_Annotation], tuple[object, object]]


def read_objects(corpus: str | Path, *, skip_bad_lines: bool = False) -> ObjectData:
    """Read a COCO file, or a folder of images with labels in the format of YOLO.

    skip_bad_lines  if True, leave out and count faulty images and annotations. If False, they are errors
    """
    path = Path(corpus)
    faults = _Faults(path)
    listed, names = _yolo(path, faults) if path.is_dir() else _coco(path, faults)
    by_place = {str(entry[0]): entry for entry in listed}
    scenes = []
    samples = (Sample(place, entry[0], number=entry[1]) for place, entry in by_place.items())
    for sample, check in logged(check_images(samples, {}, 0), f"checking images of {path}"):
        file, number, annotations, stated = by_place[sample.place]
        if isinstance(check, BadRow):
            faults.add(sample.place, check.fault)
            continue
        if None not in stated and stated != check.size:
            sizes = f"{stated[0]} x {stated[1]} and {check.size[0]} x {check.size[1]}"
            faults.add(sample.place, f"width and height differ from those of the upright image: {sizes}")
            continue
        boxes, labels, sides = [], [], np.array([*check.size] * 2, dtype=np.float32)
        for place, label, box in annotations:
            scaled = np.array(box, dtype=np.float32) * (sides if path.is_dir() else 1)
            if label is None:
                faults.add(place, "the category is unknown")
            elif fault := _fault_of(scaled.tolist(), check.size):
                faults.add(place, fault)
            else:
                boxes.append(scaled.clip(0, sides))
                labels.append(label)
        stacked = np.stack(boxes) if boxes else np.empty((0, 4), dtype=np.float32)
        scenes.append(Scene(file, stacked, tuple(labels), check.key, check.size, sample.place, number))
    skips = faults.counts(skip=skip_bad_lines)
    if not scenes:
        raise UserError(f"{path}: found no usable image; {_COCO}, or a folder of images with a folder `labels`")
    return ObjectData(scenes, names, file=path, skips=skips)


def _fault_of(box: Sequence[float], size: tuple[int, int]) -> str:
    left, top, right, bottom = box
    if not all(map(math.isfinite, box)):
        return f"the box is not finite: {box}"
    if right <= left or bottom <= top:
        return f"the box has no area: {right - left:g} x {bottom - top:g}"
    if min(left, top) < -ROUNDING or right > size[0] + ROUNDING or bottom > size[1] + ROUNDING:
        return f"the box is not inside the image: {left:g}, {top:g} to {right:g}, {bottom:g} of {size[0]} x {size[1]}"
    return ""


def _coco(file: Path, faults: _Faults) -> tuple[list[_Listed], tuple[str, ...]]:
    images, categories, rows = _coco_lists(file)
    named = {category.get("id"): str(category.get("name")) for category in categories}
    for name, count in Counter(named.values()).items():
        if count > 1:
            faults.add(f"{file}: category {name}", "the name occurs twice")
    annotations: dict[object, list[_Annotation]] = {image["id"]: [] for image in images}
    for number, row in _unique(rows, "annotation", faults):
        place, box = f"{file}: annotation {row.get('id', number)}", row.get("bbox")
        if not isinstance(box, list) or len(box) != 4 or not all(isinstance(value, int | float) for value in box):
            faults.add(place, "bbox is not a list of four numbers")
        elif row.get("image_id") not in annotations:
            faults.add(place, f"the file lists no such image: {row.get('image_id')}")
        elif not row.get("iscrowd"):  # A box around a crowd is not an object.
            left, top, width, height = box
            label = named.get(row.get("category_id"))
            annotations[row["image_id"]].append((place, label, (left, top, left + width, top + height)))
    folder = _image_folder(file, [str(image["file_name"]) for image in images])
    listed = [
        (
            folder / str(image["file_name"]),
            image["id"] if isinstance(image["id"], int) else row,
            annotations[image["id"]],
            (image.get("width"), image.get("height")),
        )
        for row, image in _unique(images, "image", faults)
    ]
    return listed, tuple(dict.fromkeys(named.values()))


def _coco_lists(file: Path) -> tuple[list[dict[str, Any]], ...]:
    """Return the images, the categories and the annotations of a COCO file."""
    content = read_json(file, _COCO)
    images, categories, rows = (_dictionaries(content, name) for name in ("images", "categories", "annotations"))
    if lacking := [one for one in images if not {"id", "file_name"} <= one.keys()]:
        raise UserError(f"{file}: an image lacks id or file_name: {str(lacking[0])[:80]}; {_COCO}")
    return images, categories, rows


class CocoIds(NamedTuple):
    """Ids of a COCO file: of its images by their paths, and of its categories by their names."""

    images: dict[Path, object]
    categories: dict[str, object]


def coco_ids(file: Path) -> CocoIds:
    """Read the ids of a COCO file. The paths of the images are resolved."""
    images, categories, _ = _coco_lists(file)
    folder = _image_folder(file, [str(image["file_name"]) for image in images])
    paths = {(folder / str(image["file_name"])).resolve(): image["id"] for image in images}
    return CocoIds(paths, {str(category.get("name")): category.get("id") for category in categories})


def _dictionaries(content: object, name: str) -> list[dict[str, Any]]:
    """Return a list of a COCO file. Raises UserError if it is missing, or not a list of JSON objects."""
    rows = content.get(name) if isinstance(content, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{_COCO}, each a list of objects; found another {name}")
    ids = [row.get(key) for row in rows for key in ("id", "image_id", "category_id")]
    if wrong := [each for each in ids if not isinstance(each, int | str | None)]:
        raise UserError(f"an id in {name} is {str(wrong[0])[:40]}: expected a number")
    return rows


def _unique(rows: Iterable[Any], what: str, faults: _Faults) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the rows of a COCO list with their numbers from 1, without those that repeat the id of an earlier row."""
    counts: Counter[object] = Counter()
    for number, row in enumerate(rows, 1):
        counts[row.get("id", f"row {number}")] += 1
        if counts[row.get("id", f"row {number}")] > 1:
            faults.add(f"{faults.corpus}: {what} {row['id']}", "the id occurs twice")
        else:
            yield number, row


def _image_folder(file: Path, names: Sequence[str]) -> Path:
    """Return the folder with the images of a COCO file: the first candidate in which one of them exists."""
    split = file.stem.removeprefix("instances_")
    above = file.parent.parent
    names_of_split = (split, split.rstrip("0123456789"))
    candidates = [file.parent, file.parent / "images", *(file.parent / name for name in names_of_split)]
    candidates += [folder / name for folder in (above, above / "images") for name in (*names_of_split, "")]
    return next((folder for folder in candidates if any((folder / name).is_file() for name in names)), file.parent)


def _yolo(folder: Path, faults: _Faults) -> tuple[list[_Listed], tuple[str, ...]]:
    names = _yolo_names(folder)
    listed: list[_Listed] = []
    for number, image in enumerate(sorted(f for f in folder.rglob("*") if f.suffix.lower() in PICTURES), 1):
        text = labels_folder(folder) / image.relative_to(folder).with_suffix(".txt")
        lines = text.read_text(encoding="utf-8", errors="replace").splitlines() if text.is_file() else []
        listed.append((image, number, [*_yolo_lines(text, lines, names, faults)], (None, None)))
    return listed, names


def _yolo_lines(file: Path, lines: Sequence[str], names: Sequence[str], faults: _Faults) -> Iterator[_Annotation]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            index, x, y, width, height = map(float, line.split())
        except ValueError:
            faults.add(f"{file}:{number}", "expected a class index and four numbers")
            continue
        label = names[int(index)] if index in range(len(names)) else None
        yield f"{file}:{number}", label, (x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def labels_folder(images: Path) -> Path:
    """Return the folder of the text files for a folder of images: its last part `images` becomes `labels`."""
    parts = list(images.parts)
    if "images" not in parts:
        return images
    at = len(parts) - 1 - parts[::-1].index("images")
    return Path(*parts[:at], "labels", *parts[at + 1 :])


def _yolo_names(folder: Path) -> tuple[str, ...]:
    for above in (folder, *folder.parents[:3]):
        for name in ("data.yaml", "dataset.yaml"):
            if (file := above / name).is_file():
                names = (yaml.safe_load(file.read_text()) or {}).get("names")
                if isinstance(names, dict | list):
                    return tuple(map(str, names.values() if isinstance(names, dict) else names))
        if (file := above / "classes.txt").is_file():
            return tuple(line.strip() for line in file.read_text().splitlines() if line.strip())
    raise UserError(f"{folder}: found no names of classes; expected data.yaml with `names`, or classes.txt")

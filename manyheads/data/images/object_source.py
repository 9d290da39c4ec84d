"""Data source of images with objects. Images with equal pixels count as duplicates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from manyheads.data.images.digit_scenes import digit_scenes
from manyheads.data.images.object_files import labels_folder, read_objects
from manyheads.data.images.objects import ObjectData
from manyheads.data.readers.memory import Rows
from manyheads.data.readers.roles import folders_in, role_of, splits_among, visible
from manyheads.data.readers.splits import SplitData, Splits, hashes_of, hold_out
from manyheads.data.sources.report import Report
from manyheads.data.sources.source import Items, Source
from manyheads.errors import UserError, shown


@dataclass(frozen=True, kw_only=True)
class ObjectSource(Source[ObjectData]):
    """Data source of images with objects. If no data are given, scenes of handwritten digits are used.

    scenes  number of training scenes, if no data are given
    """

    kind = "objects"
    unit = "images"
    suffixes: ClassVar[tuple[str, ...]] = (".json",)

    scenes: Items = 4000

    @property
    def expected(self) -> str:
        return "annotations/instances_train.json (COCO), or images/train and labels/train (YOLO)"

    def splits_in(self, folder: Path) -> Splits:
        """Return the COCO files, or the folders of images with labels in the format of YOLO, of each split."""
        files = [file for place in (folder, *folders_in(folder)) for file in visible(place) if file.suffix == ".json"]
        # The name of a file, or of its folder, states the split: instances_train2017.json, train/_annotations.coco.json
        named = {file.name if role_of(file.name) else f"{file.parent.name}/{file.name}": file for file in files}
        if found := {name: str(file) for name, file in named.items() if role_of(name.partition("/")[0])}:
            roles = splits_among(Path(), {name.partition("/")[0]: None for name in found})
            by_role = {name.partition("/")[0]: path for name, path in found.items()}
            return roles.mapped(lambda path: by_role[path])
        below = folder / "images" if (folder / "images").is_dir() else folder
        splits = [each for each in folders_in(below) if role_of(each.name)]
        paths = {each.name: each / "images" if (each / "images").is_dir() else each for each in splits}
        if paths:
            return splits_among(Path(), paths).mapped(lambda path: str(paths[path]))
        return Splits(str(below), None, []) if labels_folder(below).is_dir() else Splits(None, None, [])

    def read_one(self, corpus: str | Rows, labels: Sequence[str] = ()) -> ObjectData:
        if isinstance(corpus, Rows):
            raise UserError("objects in memory cannot be read; expected the path of a COCO file, or of a YOLO folder")
        data = read_objects(corpus, skip_bad_lines=self.skip_bad_lines)
        if labels and (unknown := data.unknown(labels)):
            raise UserError(f"{corpus}: the model does not know {shown(unknown)}; it knows {shown(labels, 8)}")
        return data

    def embedded(self) -> SplitData[ObjectData]:
        return digit_scenes(self.scenes, self.seed)

    def hold_out(self, train: ObjectData) -> tuple[ObjectData, ObjectData]:
        return hold_out(train, train.keys, fraction=self.fraction, what="image")

    def check_training(self, train: ObjectData) -> None:
        if not train.objects:
            raise UserError(
                f"{train.file or self.data}: found no object in {len(train):,} images; expected annotations"
            )

    def fitting(self, data: ObjectData, train: ObjectData) -> ObjectData:
        if unknown := data.unknown(train.names):
            raise UserError(f"{data.file}: the training data lack {shown(unknown)}; they have {shown(train.names, 8)}")
        return replace(data, names=train.names)

    def content(self, data: ObjectData, split: str) -> Iterable[str]:
        return (f"{scene.key} {scene.boxes.tolist()} {scene.labels}" for scene in data.scenes)

    def report(self, splits: SplitData[ObjectData]) -> str:
        """Return a report: images, objects of each label, sizes, duplicates and overlap with the training data."""
        report = Report(splits.known, "images")
        report.count_row("without an object", lambda data: sum(not scene.labels for scene in data.scenes))
        report.row("objects", lambda data: f"{data.objects:,}")
        report.row("objects in an image (largest)", lambda data: max(len(scene.labels) for scene in data.scenes))
        for label in splits.train.names[:6]:
            report.row(f"label: {label}", lambda data, of=label: f"{sum(s.labels.count(of) for s in data.scenes):,}")  # type: ignore[misc]
        report.repetitions(lambda data: hashes_of(data.keys))
        return str(report)

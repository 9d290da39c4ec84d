"""Data source of labeled images. Images with equal pixels count as duplicates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from manyheads.data.images.files import Columns, find_splits, idx_labels_path, labeled_samples
from manyheads.data.images.labeled_images import ImageData, digits, read_images
from manyheads.data.images.store import clear
from manyheads.data.readers.labeled import label_sets, labels_of, with_labels
from manyheads.data.readers.memory import Rows
from manyheads.data.readers.splits import SplitData, Splits, hashes_of, hold_out, same_place
from manyheads.data.sources.class_source import ClassSource, warn_about_absent
from manyheads.data.sources.report import Report
from manyheads.data.sources.source import HUB
from manyheads.errors import shown


@dataclass(frozen=True, kw_only=True)
class ImageSource(ClassSource[ImageData]):
    """Data source of labeled images. If no data are given, scikit-learn's handwritten digits are used.

    cache_folder  folder for saved validation results of images (see `read_images`); only one process may write to it
    follows       True if another process writes to `cache_folder`; this process then writes nothing to it
    """

    kind = "images"
    tuples = (("image", "label"),)
    unit = "images"

    columns: Columns = field(default_factory=Columns)
    cache_folder: Path | None = None
    follows: bool = False

    @property
    def label_columns(self) -> tuple[str, ...]:
        return self.columns.labels

    def read(self) -> SplitData[ImageData]:
        if self.cache_folder is not None and not self.follows:
            clear(self.cache_folder)
        return super().read()

    def read_one(self, corpus: str | Rows, labels: Sequence[str] = ()) -> ImageData:
        images = read_images(
            corpus, names=self.names_for(labels, corpus), columns=self.columns, skip_bad_lines=self.skip_bad_lines,
            cache_folder=self.cache_folder, follows=self.follows, only=self._sampled(corpus, labels),
            target=self.target,
        )  # fmt: skip
        skip = labels and self.skip_bad_lines
        return with_labels(images, set(labels), skip_bad_lines=True, unit="images") if skip else images

    def is_sufficient(self, labels: Sequence[str]) -> bool:
        return len(labels) >= 2  # A label without images keeps its class index.

    def _sampled(self, corpus: str | Rows, labels: Sequence[str]) -> set[int] | None:
        """Return the positions of the sampled training images, or None if they cannot be drawn before decoding.

        If images may be skipped or held out, the number of training images is known only after all are decoded.
        """
        if self.sample is None or self.skip_bad_lines or labels or self.data is None or self.data.startswith(HUB):
            return None
        splits = self.splits()
        if isinstance(corpus, Rows) or not same_place(corpus, splits.train) or splits.validation is None:
            return None
        count = sum(1 for _ in labeled_samples(corpus, self.columns, images=False)[0])
        return set(Random(self.seed).sample(range(count), self.sample)) if self.sample < count else None

    def check_training(self, train: ImageData) -> None:
        super().check_training(train)
        warn_about_absent(self.columns.label, train.labels)

    def embedded(self) -> SplitData[ImageData]:
        return digits(self.seed)

    def hold_out(self, train: ImageData) -> tuple[ImageData, ImageData]:
        strata = label_sets(train.labels, train.target)
        return hold_out(train, train.keys, strata=strata, fraction=self.fraction, what="image")

    def fitting(self, data: ImageData, train: ImageData) -> ImageData:
        """Check that all labels of the images also occur in the training data, and return the images.

        Other labels are an error, because a model can only predict labels that it was trained on.
        """
        labels = labels_of(train.labels, train.target)
        known = with_labels(data, labels, skip_bad_lines=self.skip_bad_lines, unit="images")
        return replace(known, names=train.names)

    def report(self, splits: SplitData[ImageData]) -> str:
        """Return a report on the splits.

        It is a table of sizes, modes, labels, duplicates and overlap with the training data, followed by warnings.
        """
        report, train = Report(splits.known, "images"), splits.train
        report.row("pixels (smallest / largest)", _sizes)
        report.row("modes", _modes)
        report.targets(train.names)
        report.repetitions(lambda images: hashes_of(images.keys))
        report.contradictions(train.keys, train.labels)
        known = labels_of(train.labels, train.target)
        if without := [label for label in train.names if label not in known]:
            report.warnings.append(f"found no training image for {shown(without, 8)}")
        if notes := list(dict.fromkeys(note for images in splits.known.values() for note in images.notes)):
            others = f" (and about {len(notes) - 1:,} more)" if len(notes) > 1 else ""
            report.warnings.append(f"Pillow warns about {notes[0]}{others}; using these images anyway")
        return str(report)

    @property
    def expected(self) -> str:
        return "train/CLASS/IMAGE (or train.parquet, train.jsonl, ...)"

    def find(self, data: str) -> Splits:
        return find_splits(data)

    def files(self, corpus: str) -> list[Path]:
        """Return the paths of a corpus: its class folders, or its files, including the label files of MNIST."""
        files = super().files(corpus)
        label_files = [path for file in files if (path := idx_labels_path(file)) != file and path.is_file()]
        return [*files, *label_files]

    def content(self, data: ImageData, split: str) -> list[str]:
        return [*data.keys, *data.labels]


def _modes(images: ImageData) -> str:
    return ", ".join(f"{mode} {n:,}" for mode, n in Counter(item.mode for item in images.items).most_common())


def _sizes(images: ImageData) -> str:
    by_area = sorted({item.size for item in images.items}, key=lambda size: size[0] * size[1])
    ends = [f"{width:,} x {height:,}" for width, height in dict.fromkeys((by_area[0], by_area[-1]))]
    return " / ".join(ends)

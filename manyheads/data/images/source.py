"""Images with labels as the data of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from manyheads.data.images.files import Columns, find_splits
from manyheads.data.images.reading import ImageData, digits, read_image_splits, read_images
from manyheads.data.images.report import image_report
from manyheads.data.source import HUB, Source, existing
from manyheads.data.splits import SplitData, Splits


@dataclass(frozen=True, kw_only=True)
class ImageSource(Source[ImageData]):
    """Images, whose labels are called `names` where they are 0, 1, ...; without data, scikit-learn's digits.

    sample  training images that are used, drawn at random; None: all
    kept    where what was checked is remembered; see `read_images`
    """

    kind = "images"
    unit = "images"

    names: tuple[str, ...] = ()
    columns: Columns = field(default_factory=Columns)
    sample: int | None = None
    kept: Path | None = None

    def report(self, splits: SplitData[ImageData]) -> str:
        return image_report(splits)

    def embedded(self) -> SplitData[ImageData]:
        return digits(self.seed).sampled(self.sample, self.seed)

    def read(self) -> SplitData[ImageData]:
        if self.data is None:
            return self.embedded()
        return read_image_splits(
            self.data, names=self.names, columns=self.columns, validation=self.validation, test=self.test,
            skip_bad_lines=self.skip_bad_lines, kept=self.kept,
        ).sampled(self.sample, self.seed)  # fmt: skip

    def read_one(self, corpus: str, labels: Sequence[str] = (), limit: int | None = None) -> ImageData:
        names = self.names or (() if any(label.isdecimal() for label in labels) else tuple(labels))
        return read_images(corpus, names=names, columns=self.columns, skip_bad_lines=self.skip_bad_lines)

    def find(self, data: str, validation: str | None = None, test: str | None = None) -> Splits:
        return find_splits(data, validation=validation, test=test)

    def content(self, data: ImageData, split: str) -> list[str]:
        return [*data.keys, *data.labels]

    def files(self, corpus: str) -> list[Path]:
        return existing(corpus)

    def test_in(self, data: str) -> str:
        """The test images of a directory of splits; of anything else, all there is."""
        try:
            return next(iter(self.find(data).test), data)
        except FileNotFoundError:
            return data

    def peek(self) -> None:
        """Finds the splits and decodes nothing, for all images are looked at before a training begins; fetches nothing."""
        if self.data is None or not self.data.startswith(HUB):
            self.splits()

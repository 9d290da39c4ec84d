"""What labelled images are like, told before training on them. Images are the same where their pixels are."""

from __future__ import annotations

from collections import Counter

from manyheads.data.images.checking import listed
from manyheads.data.images.reading import ImageData
from manyheads.data.report import Report
from manyheads.data.splits import SplitData


def image_report(splits: SplitData[ImageData]) -> str:
    """A table of sizes, modes, labels, duplicates and overlap with training, with warnings below."""
    report, train = Report(splits.known, "images"), splits.train
    report.row("pixels (smallest / largest)", _sizes)
    report.row("modes", _modes)
    report.labels(lambda images: images.labels, train.names)
    report.repetitions(lambda images: images.keys)
    report.contradictions(train.keys, train.labels)
    known = set(train.labels)
    if without := [label for label in train.names if label not in known]:
        report.warnings.append(f"no training image of {listed(without)}")
    if notes := list(dict.fromkeys(note for images in splits.known.values() for note in images.notes)):
        others = f" (and of {len(notes) - 1:,} more)" if len(notes) > 1 else ""
        report.warnings.append(f"Pillow says of {notes[0]}{others}; used all the same")
    return str(report)


def _modes(images: ImageData) -> str:
    return ", ".join(f"{mode} {n:,}" for mode, n in Counter(item.mode for item in images.items).most_common())


def _sizes(images: ImageData) -> str:
    by_area = sorted({item.size for item in images.items}, key=lambda size: size[0] * size[1])
    ends = [f"{width:,} x {height:,}" for width, height in dict.fromkeys((by_area[0], by_area[-1]))]
    return " / ".join(ends)

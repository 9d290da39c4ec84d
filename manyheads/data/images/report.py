"""What labelled images are like, told before training on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from manyheads.data.images.checking import listed
from manyheads.data.images.reading import ImageData

_SHOWN = 6  # labels


def image_report(train: ImageData, validation: ImageData, test: ImageData | None = None) -> str:
    """A table of sizes, modes, labels, duplicates and overlap with training, with warnings below. Images are the same
    where their pixels are."""
    splits = {"train": train, "validation": validation} | ({"test": test} if test is not None else {})
    known = dict(zip(train.keys, train.labels, strict=True))
    table = Table("corpus", *splits)

    def row(name: str, values: Mapping[str, object]) -> None:
        table.add_row(name, *(str(values[split]) for split in splits))

    def counted(found: Mapping[str, int]) -> dict[str, object]:
        return {name: f"{n:,} ({n / len(splits[name]):.1%})" for name, n in found.items()}

    row("images", {name: f"{len(s):,}" for name, s in splits.items()})
    row("  skipped", {name: f"{sum(s.skips.values()):,}" for name, s in splits.items()})
    row("pixels (smallest / largest)", {name: _sizes(s) for name, s in splits.items()})
    row(
        "modes",
        {
            name: ", ".join(f"{m} {n:,}" for m, n in Counter(item.mode for item in s.items).most_common())
            for name, s in splits.items()
        },
    )
    shares = {name: Counter(s.labels) for name, s in splits.items()}
    for label in train.names[:_SHOWN]:
        row(f"label: {label}", counted({name: counts[label] for name, counts in shares.items()}))
    if more := train.names[_SHOWN:]:
        row(
            f"{len(more):,} more labels",
            counted({n: sum(counts[label] for label in more) for n, counts in shares.items()}),
        )
    row("duplicates", counted({name: len(s) - len(set(s.keys)) for name, s in splits.items()}))
    overlap = {name: sum(key in known for key in s.keys) for name, s in splits.items() if s is not train}
    row("images of the training data", {"train": "", **counted(overlap)})
    contradicted = sum(known[key] != label for key, label in zip(train.keys, train.labels, strict=True))
    without = [label for label in train.names if not shares["train"][label]]
    warnings = [
        f"warning: {n:,} of {len(splits[name]):,} {name} images are in the training data: {name} scores flatter the"
        " model\n"
        for name, n in overlap.items()
        if n
    ]
    if contradicted:
        warnings.append(f"warning: training images that occur again with another label: {contradicted:,}\n")
    if without:
        warnings.append(f"warning: no training image of {listed(without)}\n")
    if notes := list(dict.fromkeys(note for data in splits.values() for note in data.notes)):
        others = f" (and of {len(notes) - 1:,} more)" if len(notes) > 1 else ""
        warnings.append(f"warning: Pillow says of {notes[0]}{others}; used all the same\n")
    console = Console(width=120, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get() + "".join(warnings)


def _sizes(data: ImageData) -> str:
    by_area = sorted({item.size for item in data.items}, key=lambda size: size[0] * size[1])
    ends = [f"{width:,} x {height:,}" for width, height in dict.fromkeys((by_area[0], by_area[-1]))]
    return " / ".join(ends)

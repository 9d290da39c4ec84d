"""What labelled texts are like, told before training on them."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table

from manyheads.data.labelled import Labelled, label_order
from manyheads.data.report import Lengths

_SHOWN = 6  # labels


def labelled_report(train: Labelled, validation: Labelled, test: Labelled | None = None) -> str:
    """A table of sizes, lengths, labels, duplicates and overlap with training, with warnings below."""
    splits = {"train": train, "validation": validation} | ({"test": test} if test is not None else {})
    known = dict(zip(train.inputs, train.labels, strict=True))
    table = Table("corpus", *splits)

    def row(name: str, values: dict[str, object]) -> None:
        table.add_row(name, *(str(values[split]) for split in splits))

    def counted(found: dict[str, int]) -> dict[str, object]:
        return {name: f"{n:,} ({n / len(splits[name]):.1%})" for name, n in found.items()}

    row("texts" if train.pairs is None else "pairs", {name: f"{len(s):,}" for name, s in splits.items()})
    row("  skipped", {name: f"{sum(s.skips.values()):,}" for name, s in splits.items()})
    lengths = {name: Lengths.of([len(text.split()) for text in s.inputs]) for name, s in splits.items()}
    row("words (mean / 99% / longest)", dict(lengths))
    shares = {name: Counter(s.labels) for name, s in splits.items()}
    labels = label_order(train.labels)
    for label in labels[:_SHOWN]:
        row(f"label: {label}", counted({name: counts[label] for name, counts in shares.items()}))
    if len(labels) > _SHOWN:
        row(f"{len(labels) - _SHOWN:,} more labels", counted({
            name: sum(counts[label] for label in labels[_SHOWN:]) for name, counts in shares.items()
        }))  # fmt: skip
    row("duplicates", counted({name: len(s) - len(set(s.inputs)) for name, s in splits.items()}))
    overlap = {name: sum(text in known for text in s.inputs) for name, s in splits.items() if s is not train}
    row("texts of the training data", {"train": "", **counted(overlap)})
    contradicted = sum(known[text] != label for text, label in zip(train.inputs, train.labels, strict=True))
    warnings = [
        f"warning: {n:,} of {len(splits[name]):,} {name} texts are in the training data: {name} scores flatter the "
        "model\n"
        for name, n in overlap.items()
        if n
    ]
    if contradicted:
        warnings.append(f"warning: {contradicted:,} training texts occur again with another label\n")
    console = Console(width=120, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get() + "".join(warnings)

"""What a tagged corpus is like, told before training on it."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table

from manyheads.data.conll import Tagged
from manyheads.data.report import Lengths


def tag_report(train: Tagged, validation: Tagged, test: Tagged | None = None) -> str:
    """A table of sizes, lengths, entities, duplicates and overlap with training, with warnings below."""
    splits = {"train": train, "validation": validation} | ({"test": test} if test is not None else {})
    known = set(map(tuple, train.words))
    table = Table("corpus", *splits)

    def row(name: str, values: dict[str, object]) -> None:
        table.add_row(name, *(str(values[split]) for split in splits))

    def counted(found: dict[str, int]) -> dict[str, object]:
        return {name: f"{n:,} ({n / len(splits[name]):.1%})" for name, n in found.items()}

    row("sentences", {name: f"{len(s):,}" for name, s in splits.items()})
    row("  skipped", {name: f"{sum(s.skips.values()):,}" for name, s in splits.items()})
    row("words (mean / 99% / longest)", {name: Lengths.of([len(w) for w in s.words]) for name, s in splits.items()})
    kinds = {name: Counter(t[2:] for tags in s.tags for t in tags if t.startswith("B-")) for name, s in splits.items()}
    for kind in sorted(set().union(*kinds.values())):
        row(f"entities: {kind}", {name: f"{counts[kind]:,}" for name, counts in kinds.items()})
    row("duplicate sentences", counted({name: len(s) - len(set(map(tuple, s.words))) for name, s in splits.items()}))
    overlap = {name: sum(tuple(w) in known for w in s.words) for name, s in splits.items() if s is not train}
    row("sentences of the training data", {"train": "", **counted(overlap)})
    console = Console(width=120, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    warnings = [
        f"warning: {n:,} of {len(splits[name]):,} {name} sentences are in the training data: {name} scores flatter the "
        "model\n"
        for name, n in overlap.items()
        if n
    ]
    return capture.get() + "".join(warnings)

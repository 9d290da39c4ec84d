"""What a corpus is like, told before training on it: lengths, duplicates, copies, outliers, overlap between splits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from manyheads.data.parallel import Pairs

_OUTLIER = 3.0  # a pair is an outlier when its length ratio is this factor away from the median ratio


@dataclass(frozen=True)
class Lengths:
    """Statistics of one side in one unit."""

    mean: float
    median: float
    p99: float
    longest: int

    @classmethod
    def of(cls, lengths: Sequence[int] | np.ndarray[Any, Any]) -> Lengths:
        if not len(lengths):
            return cls(0.0, 0.0, 0.0, 0)
        array = np.asarray(lengths)
        median, p99 = np.percentile(array, (50, 99))
        return cls(round(float(array.mean()), 2), float(median), float(p99), int(array.max()))

    def __str__(self) -> str:
        return f"{self.mean:.1f} / {self.p99:.0f} / {self.longest:,}"


@dataclass(frozen=True)
class SplitReport:
    """One split. `overlap_*` count its pairs whose source (or source and target) is in the training data too."""

    pairs: int
    skipped: int
    lengths: dict[str, Lengths]  # "source words", "target characters", ...
    duplicate_pairs: int  # beyond the first of each
    duplicate_sources: int
    length_ratio: float  # median target characters per source character
    ratio_outliers: int
    copied: int  # target == source
    overlap_sources: int = 0
    overlap_pairs: int = 0


@dataclass(frozen=True)
class Report:
    """Prints as a table with rich, or as the same table in plain text with print."""

    splits: dict[str, SplitReport]
    warnings: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table("corpus", *self.splits, title_justify="left")
        splits = self.splits.values()
        table.add_row("pairs", *(f"{s.pairs:,}" + (f" ({s.skipped:,} skipped)" if s.skipped else "") for s in splits))
        for name in next(iter(splits)).lengths:
            table.add_row(f"{name} (mean / 99% / longest)", *(str(s.lengths.get(name, "")) for s in splits))
        for name in ("duplicate_pairs", "duplicate_sources", "copied", "ratio_outliers", "overlap_sources"):
            counts = [getattr(s, name) for s in splits]
            shares = [f"{n:,} ({n / max(s.pairs, 1):.1%})" for n, s in zip(counts, splits, strict=True)]
            table.add_row(name.replace("_", " "), *shares)
        table.add_row("length ratio (median)", *(f"{s.length_ratio:.2f}" for s in splits))
        yield table
        for warning in self.warnings:
            yield f"warning: {warning}"

    def __str__(self) -> str:
        console = Console(width=120, no_color=True, force_terminal=False)
        with console.capture() as capture:
            console.print(self)
        return capture.get()


def corpus_report(
    train: Pairs,
    validation: Pairs | None = None,
    test: Pairs | None = None,
    *,
    token_lengths: tuple[Sequence[int] | np.ndarray[Any, Any], Sequence[int] | np.ndarray[Any, Any]] | None = None,
) -> Report:
    """Reports on the splits given; `token_lengths` of the training data's (sources, targets) adds their statistics."""
    sources, pairs = set(train.sources), set(zip(train.sources, train.targets, strict=True))
    splits = {"train": _describe(train, token_lengths)}
    warnings = []
    for name, split in (("validation", validation), ("test", test)):
        if split is None:
            continue
        overlap = sum(s in sources for s in split.sources)
        both = sum(p in pairs for p in zip(split.sources, split.targets, strict=True))
        splits[name] = _describe(split, None, overlap, both)
        if overlap:
            warnings.append(
                f"{overlap:,} of {len(split):,} {name} sources are in the training data ({both:,} with the same"
                f" target): {name} scores flatter the model"
            )
    told = splits["train"]
    for count, what in ((told.ratio_outliers, "differ in length by far"), (told.copied, "are copied verbatim")):
        if count > 0.05 * told.pairs:
            warnings.append(f"{count:,} of {told.pairs:,} training pairs {what}: are the files aligned and in order?")
    if told.duplicate_pairs > 0.2 * told.pairs:
        warnings.append(f"{told.duplicate_pairs:,} of {told.pairs:,} training pairs repeat an earlier one")
    return Report(splits, warnings)


def _describe(
    split: Pairs, token_lengths: tuple[Any, Any] | None, overlap_sources: int = 0, overlap_pairs: int = 0
) -> SplitReport:
    sides = {"source": split.sources, "target": split.targets}
    characters = {side: np.array([len(t) for t in texts]) for side, texts in sides.items()}
    lengths = {f"{side} words": Lengths.of([len(t.split()) for t in texts]) for side, texts in sides.items()}
    lengths |= {f"{side} characters": Lengths.of(characters[side]) for side in sides}
    if token_lengths is not None:
        lengths |= {f"{side} tokens": Lengths.of(n) for side, n in zip(sides, token_lengths, strict=True)}
    # +1: a pair of one and two characters is no outlier
    ratios = np.log((characters["target"] + 1) / (characters["source"] + 1))
    median = float(np.median(ratios)) if len(split) else 0.0
    return SplitReport(
        pairs=len(split),
        skipped=split.skipped,
        lengths=lengths,
        duplicate_pairs=len(split) - len(set(zip(split.sources, split.targets, strict=True))),
        duplicate_sources=len(split) - len(set(split.sources)),
        length_ratio=round(math.exp(median), 3),
        ratio_outliers=int((np.abs(ratios - median) > math.log(_OUTLIER)).sum()),
        copied=sum(a == b for a, b in zip(split.sources, split.targets, strict=True)),
        overlap_sources=overlap_sources,
        overlap_pairs=overlap_pairs,
    )

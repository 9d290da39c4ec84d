"""Reader of pairs of texts with similar meaning, from the columns of a table (formats: `rows.py`).

The columns of a table determine the kind of its rows. They are found by name:

    pairs      `text` and `pair`, `anchor` and `positive`, `query` and `answer`, `question` and `answer`, or the names
               of the pairs of a classifier (`labeled.py`)
    triplets   pairs with a hard negative, a text that is similar to the pair but wrong: `negative`
    scores     pairs with their similarity, from 0 to 1 or from 0 to 5: `score`
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

from manyheads.data.readers.dataset import Dataset
from manyheads.data.readers.labeled import PAIRS, parse_target, text_of
from manyheads.data.readers.memory import Rows
from manyheads.data.readers.rows import BadRow, Cells, Row, parse_rows
from manyheads.data.readers.tables import table
from manyheads.errors import UserError

PairKind = Literal["pairs", "triplets", "scores"]
_NAMES = (("text", "pair"), ("anchor", "positive"), ("query", "answer"), ("question", "answer"), *PAIRS)
MAX_SCORE = 5.0  # largest similarity of the benchmark STS


@dataclass(frozen=True)
class PairColumns:
    """Names of the table columns, if they differ from the default names.

    text      column of the first text of a pair; None: the default name
    pair      column of the second text; None: the default name
    negative  column of a hard negative; None: the column `negative`, if there is one
    score     column of the similarity; None: the column `score`, if there is one
    """

    text: str | None = None
    pair: str | None = None
    negative: str | None = None
    score: str | None = None


@dataclass(frozen=True, repr=False)
class TextPairs(Dataset):
    """Data set of pairs of texts.

    negatives  hard negative of each pair; empty if there are none
    scores     similarity of each pair as in the file, from 0 to 1 or from 0 to 5; empty if there are none
    used       names of the columns that were read
    unused     names of the other columns
    """

    columns: ClassVar[tuple[str, ...]] = ("texts", "pairs", "negatives", "scores")

    texts: list[str]
    pairs: list[str]
    negatives: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    used: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def kind(self) -> PairKind:
        return "scores" if self.scores else "triplets" if self.negatives else "pairs"

    @property
    def sides(self) -> list[list[str]]:
        """The texts of each column: the first texts, the second texts and, if there are any, the hard negatives."""
        return [self.texts, self.pairs, *([self.negatives] if self.negatives else [])]

    @property
    def equal(self) -> int:
        """Number of pairs of two equal texts. A model learns nothing from them."""
        return sum(text == pair for text, pair in zip(self.texts, self.pairs, strict=True))


def read_text_pairs(
    path: str | Path | Rows, columns: PairColumns | None = None, *, skip_bad_lines: bool = False
) -> TextPairs:
    """Read pairs of texts from one table.

    skip_bad_lines  True: leave out and count faulty rows

    Raises FileNotFoundError, or a one-line UserError that names the file, the line and a remedy.
    """
    chosen: list[PairColumns] = []
    others: list[str] = []
    scores: list[float] = []

    def item(row: Row[Cells]) -> tuple[str, ...]:
        if not chosen:  # The first row without a fault determines the names of the columns.
            chosen.append(_choose(columns or PairColumns(), row))
            others.extend(name for name in row.cells if name not in vars(chosen[0]).values())
        names = chosen[0]
        texts = [text_of(row.cells, name) for name in (names.text, names.pair, names.negative) if name is not None]
        if names.score is not None:
            scores.append(_score(row.cells.get(names.score), names.score))
        return tuple(texts)

    data = TextPairs.collect(parse_rows(table(path), item), path, "no usable row found", skip=skip_bad_lines)
    used = tuple(name for name in vars(chosen[0]).values() if name is not None)
    return replace(data, scores=scores, used=used, unused=tuple(others))


def _score(value: object, name: str) -> float:
    score = float(parse_target(value, name, (), "regression", set()))
    if not 0 <= score <= MAX_SCORE:
        raise BadRow(f"score out of range: found {score:g} in {name!r}", "give a similarity from 0 to 1 or from 0 to 5")
    return score


def _choose(columns: PairColumns, row: Row[Cells]) -> PairColumns:
    """Find the columns of a table. Columns that the table lacks are None in the result."""
    available = list(row.cells)
    listed = ", ".join(map(repr, available))
    for name in vars(columns).values():
        if name is not None and name not in available:
            raise UserError(f"{row.place}: expected a column {name!r}, found {listed}")
    text, pair = columns.text, columns.pair
    if text is None and pair is None:
        text, pair = next((names for names in _NAMES if set(names) <= set(available)), (None, None))
    if text is None or pair is None:
        raise UserError(
            f"{row.place}: expected two columns of texts, such as `text` and `pair`, found {listed}; name the columns "
            "in a header line, or set columns.text=NAME columns.pair=NAME"
        )
    negative, score = columns.negative, columns.score
    if negative is None and score is None:
        negative, score = (name if name in available else None for name in ("negative", "score"))
    if negative is not None and score is not None:
        raise UserError(
            f"{row.place}: found a hard negative in {negative!r} and a similarity in {score!r}: expected one of them; "
            f"select one with columns.negative={negative} or columns.score={score}"
        )
    return PairColumns(text, pair, negative, score)

"""Predictions for the rows of a table: all rows and columns of a table file, in the same order, with added columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from manyheads.core.config import Hint
from manyheads.data.readers.rows import BadRow, Cells, Row, text_fault
from manyheads.data.readers.tables import table
from manyheads.data.table_writer import Layout, Write, cell_fault, schema_of, table_writer
from manyheads.data.text.text_faults import ItemError
from manyheads.errors import UserError
from manyheads.files import replacing
from manyheads.training.distributed import distributed_context

if TYPE_CHECKING:
    import pyarrow

ROWS = 1000  # maximum number of rows in memory
ERROR = "error"  # name of the column with the faults of rows that have no prediction
Inputs: TypeAlias = tuple[Any, ...]  # inputs of the model for a row: texts, lists of words, or an image
Report: TypeAlias = Callable[[int, int], None]  # function of the number of finished rows and of all rows


@dataclass(frozen=True)
class RowTask:
    """Prediction of the rows of a table by a model.

    read     function that returns the inputs of the model for a row. Raises BadRow if they are missing or invalid
    predict  function that returns the added cells of each row for the inputs of a block of rows, or the fault of a row
             as a text. Raises ItemError for a row that the model cannot read
    added    names of the added columns, with the types of their cells
    subject  noun of the inputs in messages, before the fault of an ItemError
    rows     number of rows in a block
    """

    read: Callable[[Row[Cells]], Inputs]
    predict: Callable[[Sequence[Inputs]], Sequence[Cells | str]]
    added: Mapping[str, Hint]
    subject: str = "this text "
    rows: int = ROWS


def columns_of(source: Path) -> list[str]:
    """Return the names of the columns in the first row of a table without a fault."""
    return list(next((row.cells for row in table(source) if not row.fault), {}))


def choose_column(source: Path, name: str, given: str | None, candidates: Iterable[str]) -> str:
    """Return the column of a table that has the input `name` of a model.

    given       name of the column that the user or the record of the run gives; None: the first of the candidates
    candidates  usual names of the column
    """
    columns = columns_of(source)
    found = given if given in columns else None
    if given is None:
        found = next((candidate for candidate in candidates if candidate in columns), None)
    if found is None:
        expected = f"a column {given!r}" if given is not None else f"a column for the {name}"
        listed = ", ".join(map(repr, columns)) or "no rows"
        raise UserError(f"{source}: expected {expected}, found {listed}; name it with --columns {name}=NAME")
    return found


def rows_at(source: Path, lines: Collection[int]) -> dict[int, tuple[int, Cells]]:
    """Return the number, from 1, and the cells of each row of a table that begins at one of these lines."""
    wanted = set(lines)
    rows = enumerate(table(source), 1)
    return {row.number: (index, row.cells) for index, row in rows if row.number in wanted}


def check_added(source: Path, columns: Collection[str], added: Iterable[str]) -> None:
    """Raise UserError if a table already has a column that is added to it."""
    if taken := ", ".join(repr(name) for name in added if name in columns):
        raise UserError(f"{source}: already has the column {taken}, which would be added: rename the column")


def text_reader(*columns: str, lists: bool = False) -> Callable[[Row[Cells]], Inputs]:
    """Return a function that reads the text in each of the columns of a row. It raises BadRow for a blank cell.

    lists  True: a cell may also be a list of words
    """

    def read(row: Row[Cells]) -> Inputs:
        for name in columns:
            value = row.cells.get(name)
            words = value if lists and isinstance(value, list) and value else [value]
            for fault in filter(None, (text_fault(word, name) for word in words)):
                raise BadRow(*fault)
        return tuple(row.cells[name] for name in columns)

    return read


def rounded(number: float) -> float:
    """Return a number with six significant digits."""
    return float(f"{number:.6g}")


def predict_table(source: Path, out: Path, task: RowTask, *, skip_bad_lines: bool, report: Report) -> tuple[int, int]:
    """Write all rows of a table with predictions. Return the number of rows, and of rows without a prediction.

    The table is read twice: the first pass finds missing cells before anything is computed. The output replaces `out`
    at the end. After an error, the previous content of `out` remains.

    skip_bad_lines  True: write a row with a fault without a prediction, and with the fault in the column `error`
    """
    suffix, added = out.suffix.lower(), dict(task.added)
    if skip_bad_lines:
        added[ERROR] = str
    count, layout = _survey(source, suffix, task, added, skip_bad_lines)
    done = faulty = 0
    with ExitStack() as files:
        write: Write | None = None
        if distributed_context().first:
            temporary = files.enter_context(replacing(out))
            write = files.enter_context(table_writer(temporary, suffix, layout))
        for block in _blocks(table(source), task.rows):
            found = list(_predicted(block, task, skip_bad_lines))
            if write is not None:
                write([{**row.cells, **cells} for row, cells in zip(block, found, strict=True)])
            done += len(block)
            faulty += sum(bool(cells.get(ERROR)) for cells in found) if skip_bad_lines else 0
            report(done, count)
    return done, faulty


def _survey(source: Path, suffix: str, task: RowTask, added: Mapping[str, Hint], skip: bool) -> tuple[int, Layout]:
    """Return the number of rows of a table, and the columns of the output.

    Raises UserError for a row that cannot be predicted or written, and for an empty table.
    """
    columns: dict[str, None] = {}
    schema: pyarrow.Schema | None = None
    count, form = 0, source.suffix.lower()
    for block in _blocks(table(source), ROWS):
        for row in block:
            columns |= dict.fromkeys(row.cells)
            if fault := cell_fault(row.cells, suffix):
                raise UserError(f"{row.place}: {fault}")
            if not skip and isinstance(read := _read(row, task), str):
                raise UserError(f"{row.place}: {read}, or write such rows without a prediction with --skip-bad-lines")
        count += len(block)
        if suffix == ".parquet" and form not in (".parquet", ".csv", ".tsv"):
            schema = schema_of(source, [row.cells for row in block], schema)
    if not count:
        raise UserError(f"{source}: found no rows: expected one text or image a row")
    check_added(source, columns, added)
    if suffix == form == ".parquet":
        import pyarrow.parquet

        schema = pyarrow.parquet.read_schema(source)
    return count, Layout([*columns], added, schema)


def _blocks(rows: Iterator[Row[Cells]], size: int) -> Iterator[list[Row[Cells]]]:
    while block := list(islice(rows, size)):
        yield block


def _read(row: Row[Cells], task: RowTask) -> Inputs | str:
    """Return the inputs of the model in a row, or the fault of the row."""
    try:
        if row.fault:
            raise BadRow(row.fault, row.hint)
        return task.read(row)
    except BadRow as bad:
        return f"{bad.fault}; {bad.hint}"


def _predicted(block: Sequence[Row[Cells]], task: RowTask, skip: bool) -> Iterator[Cells]:
    """Yield the added cells of each row of a block."""
    inputs = [_read(row, task) for row in block]
    predictions = iter(_results([found for found in inputs if not isinstance(found, str)], task, skip))
    for row, found in zip(block, inputs, strict=True):
        cells = found if isinstance(found, str) else next(predictions)
        if not isinstance(cells, str):
            yield {**cells, ERROR: ""} if skip else cells
        elif skip:
            # A row that cannot be read has no cells, so the fault names its line.
            yield {**dict.fromkeys(task.added), ERROR: cells if row.cells else f"{row.place}: {cells}"}
        else:
            raise UserError(f"{row.place}: {cells}. To write such rows without a prediction, pass --skip-bad-lines")


def _results(inputs: Sequence[Inputs], task: RowTask, skip: bool) -> list[Cells | str]:
    """Return the added cells of each row, or its fault.

    If the model cannot read a row, both halves of the block are predicted separately. If `skip` is false, the result
    ends with the fault, and the rows before it have no cells.
    """
    if not inputs:
        return []
    try:
        return list(task.predict(inputs))
    except ItemError as error:
        if not skip or len(inputs) == 1:
            return [*[{}] * error.index, f"{task.subject}{error.fault}"]
        middle = len(inputs) // 2
        return [*_results(inputs[:middle], task, skip), *_results(inputs[middle:], task, skip)]

"""Evaluation of a model on test data."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from torch import Tensor

from manyheads.calls import checked_methods, shown
from manyheads.data.readers.splits import Data
from manyheads.data.readers.tables import is_table
from manyheads.data.table_writer import Layout, has_bytes, schema_of, table_writer
from manyheads.errors import UserError
from manyheads.files import JsonObject, replacing, same_file
from manyheads.runs.result import metrics_html
from manyheads.tasks.tables import check_added, rows_at
from manyheads.training.record import Metrics, add_own_run, is_own_run
from manyheads.training.run_directory import run_record

if TYPE_CHECKING:
    from PIL import Image

    from manyheads.data.sources.source import Source

logger = logging.getLogger(__name__)

D = TypeVar("D", bound=Data)
RESAMPLES = 1000
NO_LABEL = "no label"
MAX_PICTURES = 48  # maximum number of wrongly classified images in a picture of errors


def values(metrics: Metrics) -> dict[str, float]:
    """Return the value of each metric. Signatures, which describe how a metric was computed, are left out.

    >>> values({"accuracy": {"value": 0.5, "signature": "2 texts"}})
    {'accuracy': 0.5}
    """
    return {name: metric["value"] for name, metric in metrics.items()}


class Counts(NamedTuple):
    """Counts for one label: items that are correctly predicted, predicted, and in the reference.

    A ratio of counts whose denominator is zero has the value 0, as in conlleval.
    """

    right: int
    found: int
    in_reference: int

    @property
    def precision(self) -> float:
        return self.right / max(self.found, 1)

    @property
    def recall(self) -> float:
        return self.right / max(self.in_reference, 1)

    @property
    def f1(self) -> float:
        return 2 * self.right / max(self.found + self.in_reference, 1)

    def row(self, label: str) -> JsonObject:
        """Return the number of items in the reference, precision, recall and F1, for a table of labels."""
        return {
            "label": label, "items": self.in_reference, "precision": self.precision, "recall": self.recall,
            "f1": self.f1,
        }  # fmt: skip


class Located(Protocol):
    """Data set whose items have a location: a line of a file, or a place such as the path of an image."""

    @property
    def file(self) -> Path | None: ...
    @property
    def lines(self) -> Sequence[int]: ...
    def place(self, index: int, /) -> str: ...


@checked_methods
@dataclass(frozen=True)
class EvaluationResult:
    """Result of a model on test data. The lists have one element per item, such as a text or an image.

    inputs       items, or the paths of images
    outputs      predictions of the model
    references   correct outputs
    quality      score of each output; higher is better. By default, it is 1.0 for a correct and 0.0 for a wrong output
    metrics      metrics over all items
    unit         name of the quality score
    confidences  probability of each output. For a regression, the error; for several labels per item, the
                 probabilities of the missed and of the wrongly predicted labels
    measure      name of the confidences
    image        function that returns the image of an item, if the items are images
    data         data set that contains the items; None if it is unknown
    """

    # name of the values that the method `ranks` returns; an empty string means that the name is `unit`
    ranked_by: ClassVar[str] = ""

    inputs: list[str]
    outputs: list[str]
    references: list[str]
    quality: list[float]
    metrics: Metrics
    unit: str = field(default="right", kw_only=True)
    confidences: Sequence[float | str] = field(default_factory=list, kw_only=True)
    measure: str = field(default="probability", kw_only=True)
    image: Callable[[int], Image.Image] | None = field(default=None, kw_only=True, compare=False)
    data: Located | None = field(default=None, kw_only=True, compare=False)

    def __repr__(self) -> str:
        scores = ", ".join(f"{name} {value:.4f}" for name, value in values(self.metrics).items())
        return f"{type(self).__name__}({len(self.inputs):,} items: {scores})"

    def _repr_html_(self) -> str:
        return metrics_html(self.metrics)

    def errors(self) -> list[tuple[int, str, str, str, float | str]]:
        """Return the wrong predictions, worst first: index of the item, input, reference, output and confidence."""
        rows = zip(range(len(self.inputs)), self.inputs, self.references, self.outputs, self.confidences, strict=True)
        wrong = [row for row in rows if row[2] != row[3]]
        return sorted(wrong, key=lambda row: (self.quality[row[0]], -row[4] if isinstance(row[4], float) else 0))

    def save_errors(self, path: str | Path) -> None:
        """Write the wrong predictions to a table, or the first wrongly classified images to a picture (.png).

        The table is a .csv, .tsv, .jsonl or .parquet file. It has the number of each row, from 1, all its columns
        except files as bytes, the truth, the prediction and its probability.
        """
        from manyheads.analysis.figures.confusion import draw_sheet

        self.check_unread(Path(path))
        errors = self.errors()
        if Path(path).suffix.lower() != ".png":
            return self._save_table(Path(path), errors)
        assert self.image is not None
        pictures = [
            (self.image(e[0]), f"{e[2] or NO_LABEL} as {e[3] or NO_LABEL}, {e[4]}") for e in errors[:MAX_PICTURES]
        ]
        draw_sheet(path, pictures)

    def check_unread(self, path: Path) -> None:
        """Raise UserError for a file that contains the evaluated data or one of their images."""
        file = None if self.data is None else self.data.file
        pictures = self.inputs if self.image is not None else []
        within = file is not None and path.is_file() and path.resolve().is_relative_to(file.resolve())
        if within or any(same_file(path, picture) for picture in pictures):
            raise UserError(f"{path}: this file has evaluated data: give another file")

    def _save_table(self, path: Path, errors: Sequence[tuple[int, str, str, str, float | str]]) -> None:
        places = self._places([error[0] for error in errors])
        rows: list[JsonObject] = []
        for place, (index, _, truth, output, _) in zip(places, errors, strict=True):
            rows.append({**place, "truth": truth or NO_LABEL, "prediction": output or NO_LABEL, **self._scores(index)})
        columns = list(dict.fromkeys(name for row in rows for name in row)) or ["truth", "prediction", self.measure]
        suffix = path.suffix.lower()
        schema = schema_of(path, rows) if suffix == ".parquet" else None
        with replacing(path) as temporary, table_writer(temporary, suffix, Layout(columns, {}, schema)) as write:
            write(rows)

    def _scores(self, index: int) -> JsonObject:
        """Return the confidences of an item, by the names of their columns in a table."""
        return {self.measure: self.confidences[index]}

    def _places(self, indices: Sequence[int]) -> list[JsonObject]:
        """Return the row of the data for each item: of a table, of data in memory, or a file of a folder."""
        file = None if self.data is None else self.data.file
        if self.data is None or file is None or file.is_dir() or not self.data.lines:
            return [self._file_of(index, file) for index in indices]
        lines = [self.data.lines[index] for index in indices]
        if not (file.is_file() and is_table(file)):
            return [{"row": line, "input": self.inputs[i]} for i, line in zip(indices, lines, strict=True)]
        found, added = rows_at(file, lines), ["row", "truth", "prediction", *self._scores(0)]
        check_added(file, {name for _, cells in found.values() for name in cells}, added)
        plain = ({name: cell for name, cell in found[line][1].items() if not has_bytes(cell)} for line in lines)
        return [{"row": found[line][0], **cells} for line, cells in zip(lines, plain, strict=True)]

    def _file_of(self, index: int, folder: Path | None) -> JsonObject:
        """Return the file of an item, relative to the folder of the data, and the item itself if it is a text."""
        place = Path(self.inputs[index] if self.data is None else self.data.place(index))
        file = {"file": str(place.relative_to(folder))} if folder and place.is_relative_to(folder) else {}
        return file if file and self.image is not None else {**file, "input": self.inputs[index]}

    @property
    def ranks(self) -> list[float]:
        """Return a value for each item, such as the probability of the correct output.

        A comparison of two models sorts the items by the difference of this value between the models.
        """
        return self.quality

    def bootstrap(self, other: EvaluationResult) -> JsonObject:
        """Compare this result with `other` by a paired bootstrap test (Koehn 2004) with 1,000 resamples of the items.

        Returns the mean quality score of both results, their difference with its 95% interval, and its p-value. The
        p-value is the fraction of resamples whose difference lies as far from the observed difference as zero does.
        """
        first, second = np.array(self.quality), np.array(other.quality)
        change = second - first
        random, items = np.random.default_rng(1), len(change)
        resampled = np.array([change[random.integers(items, size=items)].mean() for _ in range(RESAMPLES)])
        low, high = np.quantile(resampled, (0.025, 0.975)).tolist()
        extreme = np.abs(resampled - change.mean()) >= abs(change.mean())
        return {
            self.unit: {
                "first": float(first.mean()), "second": float(second.mean()), "difference": float(change.mean()),
                "low": low, "high": high,
                "p_value": float((extreme.sum() + 1) / (RESAMPLES + 1)), "resamples": RESAMPLES,
            }
        }  # fmt: skip


@runtime_checkable
class Predictor(Protocol):
    """Interface of the predictors that `manyheads.load` returns, for their evaluation on test data."""

    @property
    def path(self) -> Path: ...

    def outcome(self, data: object = None, *, skip_bad_lines: bool = False) -> EvaluationResult:
        """Evaluate the model on the test data of its training run, or on `data`: a path, or data in memory.

        Raises UserError if there is no test data.
        """
        ...


def record_of(model: Path) -> JsonObject:
    """Return the content of result.json if the model was trained by Manyheads, otherwise an empty dictionary."""
    path = model / "result.json"
    try:
        content = run_record(model)
    except ValueError:
        content = None
    parts = ("data", "reading", "decoding", "windows", "rules")
    if not isinstance(content, dict) or not all(isinstance(content.get(part, {}), dict) for part in parts):
        raise UserError(
            f"{path}: expected the record of a run, found damaged content. "
            "Delete the file, and give the test files with --data."
        )
    return content


def trust(model: str | Path) -> None:
    """Allow Manyheads to open the data files that a run's result.json names, even if the user has not trained the run.

    By default, these files are opened only for runs that the user has trained on this machine. Raises UserError if
    result.json does not describe the training data.
    """
    if not (data := record_of(Path(model)).get("data")):
        raise UserError(f"{model}: found no result.json with the paths of its data, so there is nothing to trust")
    add_own_run(data)


def scored_data(
    model: Path,
    data: object,
    unrecorded: Source[D],
    *,
    skip_bad_lines: bool = False,
    labels: Sequence[str] = (),
    split: str = "test",
    columns: object = None,
    **settings: Any,
) -> D:
    """Return the data on which a model is evaluated.

    data        path, or data in memory as `manyheads.train` accepts them. They are read with the options of the
                training run. By default, the data of the training run are used
    unrecorded  data source that reads `data` if the model has no record of its training data. Its class may be
                outside of this package
    labels      labels of the model
    split       split of the training run's data
    columns     names of the columns in `data`. A column without a name has the name that it has in the training data
    settings    options of the data source that replace the options of the training run

    Raises UserError if the record of a run that this user has not trained names files, unless `trust` was called.
    """
    from manyheads.data.sources.recorded import recorded_data

    if skip_bad_lines and data is None:
        raise UserError(
            "--skip-bad-lines applies only to data given with --data. Add --data PATH, or remove --skip-bad-lines."
        )
    if columns is not None and data is None:
        raise UserError("columns apply only to other test data: give the data, too, with --data")
    try:
        record = record_of(model)
        recorded = recorded_data(record, type(unrecorded), run=model)
        if data is None and recorded is not None:
            source, prints = recorded.source, recorded.fingerprints
            paths = [repr(path[:300]) for path in (source.data, source.validation, source.test) if path is not None]
            if paths and not is_own_run(record["data"]):
                raise UserError(f"this run was not trained on this machine, and its record names {', '.join(paths)}. "
                                "To open these files, pass --trust. To use other data, pass --data PATH.")  # fmt: skip
            if split == "test" and "test" not in prints and "validation" in prints:
                split = "validation"
                logger.info(f"{model}: the run has no test data; scoring its validation data")
            return recorded.read(split, labels)
    except UserError as error:
        raise UserError(f"{model}: {error}") from None
    if data is None:
        raise UserError(f"{model}: found no result.json that names its {split} data. Give some with --data PATH.")
    if (
        (isinstance(data, str) and not data)
        or isinstance(data, type)
        or (isinstance(data, np.ndarray | np.generic | Tensor) and data.ndim == 0)
    ):
        raise UserError(f"data is {shown(data)}: expected a path, or rows in memory as manyheads.train accepts them")
    source = unrecorded if recorded is None or type(recorded.source) is not type(unrecorded) else recorded.source
    if columns is not None:
        named = {name: column for name, column in vars(columns).items() if column is not None}
        settings["columns"] = replace(vars(source)["columns"], **named)
    items: D = replace(source, skip_bad_lines=skip_bad_lines, **settings).read_other(data, labels)
    for reason, count in items.skips.items():
        logger.info(f"skipped items: {count:,} ({reason})")
    return items


def evaluate(predictor: Predictor, data: object = None) -> Metrics:
    """Return the metrics of a model on the test data of its training run, or on `data`."""
    return predictor.outcome(data).metrics

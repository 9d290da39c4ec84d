"""Predictions of a classifier for the rows of a table, for the command `manyheads classify`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.cli.tables import columns_for
from manyheads.core.config import Hint
from manyheads.data.images.files import IMAGES
from manyheads.data.images.files import Columns as ImageColumns
from manyheads.data.readers.label_lists import SEPARATOR
from manyheads.data.readers.labeled import TEXTS, Columns, text_columns
from manyheads.data.readers.rows import Cells, Row
from manyheads.errors import UserError
from manyheads.tasks.evaluation import record_of
from manyheads.tasks.images.objective import EVALUATION_BATCH
from manyheads.tasks.tables import Inputs, RowTask, choose_column, columns_of, rounded, text_reader

if TYPE_CHECKING:
    from manyheads.tasks.loading import LoadedModel
    from manyheads.tasks.targets import Prediction


def classify_rows(classifier: LoadedModel, options: argparse.Namespace) -> RowTask:
    """Return the predictions of a classifier of texts or images for the table of --input."""
    classifier.target.check(None, options.threshold)
    added, cells = _cells_of(classifier, options)
    top = len(classifier.labels) if options.scores else None
    threshold = None if options.scores else options.threshold
    if classifier.reads == "images":
        if options.truncate:
            raise UserError("--truncate applies to texts, but this model reads images")

        def predict_images(rows: Sequence[Inputs]) -> list[Cells | str]:
            faults: dict[int, str] = {}
            found = classifier.predictions([image for (image,) in rows], top, threshold, faults=faults)
            return [faults[i] if i in faults else cells(found[i]) for i in range(len(rows))]

        return RowTask(image_reader(classifier, options), predict_images, added, rows=EVALUATION_BATCH)
    names = _text_columns(classifier, options)

    def predict_texts(rows: Sequence[Inputs]) -> list[Cells | str]:
        texts, *pairs = map(list, zip(*rows, strict=True))
        seconds = pairs[0] if pairs else None
        found = classifier.predictions(texts, seconds, top, threshold, truncate=options.truncate)
        return [cells(prediction) for prediction in found]

    return RowTask(text_reader(*names), predict_texts, added)


def image_reader(model: LoadedModel, options: argparse.Namespace) -> Callable[[Row[Cells]], Inputs]:
    """Return a function that finds the image of a row of the table of --input: a path, or the bytes of a file.

    Options that the user does not give have the values of the training run.
    """
    given = columns_for(options, "image")
    recorded = _recorded_columns(model)
    image = choose_column(options.input, "image", given.get("image", recorded.get("image")), IMAGES)
    folder, suffix = options.folder or recorded.get("folder"), options.suffix or recorded.get("suffix")
    columns = ImageColumns(image, None, folder, suffix)

    def read(row: Row[Cells]) -> Inputs:
        sample = columns.sample(row, image, None)
        if sample.fault is not None:
            raise sample.fault
        return (sample.source,)

    return read


def _recorded_columns(model: LoadedModel) -> Mapping[str, str | None]:
    """Return the names of the columns in the training data, as far as the record of a run has them."""
    columns: Mapping[str, str | None] = record_of(model.path).get("data", {}).get("columns") or {}
    return columns


def _text_columns(classifier: LoadedModel, options: argparse.Namespace) -> list[str]:
    """Return the names of the column of the texts, and of the second texts for a model that reads pairs."""
    source: Path = options.input
    given = columns_for(options, "text", *(["pair"] if classifier.takes_pairs else []))
    recorded = _recorded_columns(classifier)
    named = Columns(given.get("text", recorded.get("text")), given.get("pair", recorded.get("pair")))
    text, pair = text_columns(named, columns_of(source))
    if pair is None and classifier.needs_pairs:
        raise UserError(f"{source}: this model reads pairs: name both columns with --columns text=NAME,pair=NAME")
    if not classifier.takes_pairs and pair is not None:
        text, pair = text_columns(Columns(named.text), [name for name in columns_of(source) if name in TEXTS])
    names = [choose_column(source, "text", text, TEXTS)]
    return names if pair is None else [*names, choose_column(source, "pair", pair, ())]


def _cells_of(
    classifier: LoadedModel, options: argparse.Namespace
) -> tuple[dict[str, Hint], Callable[[Prediction], Cells]]:
    """Return the columns that the predictions add to a table, and the function that returns their cells."""
    target = classifier.target
    if target.kind == "regression":
        if options.scores:
            raise UserError("--scores adds probabilities, but this model predicts a number: leave it out")
        return {"prediction": float}, lambda number: {"prediction": rounded(number)}
    values = dict(zip(target.labels, target.values, strict=True))
    several = target.kind == "multi-label"
    limits = target.limits(options.threshold)
    added: dict[str, Hint] = {"prediction": str if several else type(target.values[0]), "probability": float}
    if several:
        added["probability"] = str
    if options.scores:
        added |= {f"probability_{label}": float for label in target.labels}

    def cells(labels: Prediction) -> Cells:
        assert isinstance(labels, list)
        scores = {str(found.label): rounded(found.probability) for found in labels}
        row: dict[str, object]
        if several:
            over = [str(found.label) for found in labels if found.probability >= limits[str(found.label)]]
            chosen = {label: scores[label] for label in over}
            row = {"prediction": SEPARATOR.join(chosen), "probability": SEPARATOR.join(map(str, chosen.values()))}
        else:
            best = str(labels[0].label)
            row = {"prediction": values[best], "probability": scores[best]}
        return {**row, **{f"probability_{label}": scores[label] for label in target.labels if options.scores}}

    return added, cells

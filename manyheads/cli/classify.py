"""The command `manyheads classify`: predict labels of texts or images."""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyheads.cli.lines import answered, one_line, refuse_files, skip_image
from manyheads.cli.loading import PRECISION, PROCESSES, in_processes, model_for
from manyheads.cli.output import document
from manyheads.cli.parser import JSON, MODEL, Flag, Option, Positional, Verbs, number, whole
from manyheads.cli.tables import IMAGES, reads_table, table_options, write_predictions
from manyheads.errors import UserError
from manyheads.files import JsonObject

if TYPE_CHECKING:
    from manyheads.tasks.loading import LoadedModel
    from manyheads.tasks.targets import Label


def add(verbs: Verbs) -> None:
    verbs.add(
        "classify", _classify, "predict labels, or a number, of texts or images", MODEL, JSON,
        Positional("TEXT|IMAGE", "without arguments, read one text, one tab-separated pair or one image path per line "
                   "of stdin; print label and probability, tab-separated (tabs in labels become spaces), or the "
                   "number of a regression model", "rest", nargs="*"),
        Option("--pair", "TEXT", "second text of a pair"),
        Option("--top", "N", "print the N most probable labels of each text on one line (default: 1, or all over the "
               "threshold for a model with several labels per text)", whole(1, 1_000_000)),
        Option("--threshold", "P", "minimum probability of a label, for such a model (default: the run's, or 0.5)",
               number(0, 1)),
        Flag("--truncate", "shorten texts that exceed the model's maximum length"),
        *table_options("text", "pair", "image", skip=None), *IMAGES,
        Flag("--scores", "add the probability of each label to a table"),
        Flag("--skip-bad-lines", "skip images that cannot be read, and leave their lines without labels; in a table, "
             "add a column `error`", also="--skip-bad-images"),
        PRECISION, PROCESSES,
        example='manyheads classify runs/text-classification "a fine film" --top 2',
        usage="manyheads classify [OPTIONS] MODEL [TEXT|IMAGE ...]",
    )  # fmt: skip


@in_processes
def _classify(options: argparse.Namespace) -> None:
    if options.pair is not None and len(options.rest) != 1:
        raise UserError("--pair expects one TEXT; on stdin, separate the two texts of a pair with a tab")
    tabular = reads_table(options, ("pair", "top"), own=["skip_bad_lines"])
    classifier = model_for("classify", options.model, options.precision)
    if tabular:
        from manyheads.cli.classify_table import classify_rows

        return write_predictions(options, classify_rows(classifier, options))
    if classifier.reads == "images":
        return _classify_images(classifier, options)
    if options.skip_bad_lines:
        raise UserError("--skip-bad-lines applies to images, but this model reads texts")
    refuse_files([*options.rest, options.pair or ""])
    documents: list[JsonObject] = []
    paired: list[bool] = []  # True if the input lines are pairs of texts; the first line that is not empty decides

    def answers(texts: list[str]) -> list[list[Label] | float]:
        if not paired and (real := [text for text in texts if text.strip()]):
            paired.append(classifier.takes_pairs and options.pair is None and "\t" in real[0])
        return _classify_texts(classifier, texts, options, any(paired))

    for index, text, labels in answered(options.rest, answers):
        if not text.strip():
            print(f"manyheads: text {index} is blank: printed no label", file=sys.stderr)
        if options.json:
            documents.append({**_input_fields(text, classifier, options), **_fields(labels)})
        else:
            print("\t".join(_cells(labels)))
    if options.json:
        document(documents)


def _classify_images(classifier: LoadedModel, options: argparse.Namespace) -> None:
    if options.pair is not None or options.truncate:
        raise UserError("--pair and --truncate apply to texts, but this model reads images")
    documents: list[JsonObject] = []
    images = [file for path in options.rest for file in images_in(path)]

    def answers(files: list[str]) -> list[list[Label] | float | str]:
        """Return the prediction for each image, or an error message for an image that cannot be read."""
        faults: dict[int, str] = {}
        labels = classifier.predictions(files, options.top, options.threshold, faults=faults)
        return [faults.get(i, labels[i]) for i in range(len(files))]

    for index, image, labels in answered(images, answers):
        if isinstance(labels, str):
            skip_image(labels, index, options)
            labels = []
        if options.json:
            documents.append({"image": image, **_fields(labels)})
        else:
            print("\t".join([_cell(image), *_cells(labels)]))
    if options.json:
        document(documents)


def images_in(path: str) -> list[str]:
    """Return the image files of a folder and its subfolders, sorted by name; for another path, return this path."""
    if not Path(path).is_dir():
        return [path]
    from manyheads.data.images.files import PICTURES

    files = [str(file) for file in sorted(Path(path).rglob("*")) if file.suffix.lower() in PICTURES]
    if not files:
        raise UserError(f"{path}: found no images in this folder; expected files such as photo.jpg")
    return files


def _fields(prediction: list[Label] | float) -> JsonObject:
    if isinstance(prediction, float):
        return {"value": None if math.isnan(prediction) else prediction}
    return {"labels": list(map(asdict, prediction))}


def _cells(prediction: list[Label] | float) -> list[str]:
    if isinstance(prediction, float):
        return [] if math.isnan(prediction) else [f"{prediction:.4f}"]
    return [f"{_cell(str(label))}\t{label.probability:.4f}" for label in prediction]


def _cell(text: str) -> str:
    """Return a text as one cell of tab-separated output, with each tab replaced by a space."""
    return one_line(text).replace("\t", " ")


def _classify_texts(classifier: LoadedModel, texts: list[str], options: argparse.Namespace, paired: bool) -> list[Any]:
    """Classify texts, or pairs of texts if the model was trained on pairs. A tab separates the two texts of a pair."""
    from manyheads.data.text.text_faults import ItemError

    pairs = None
    if options.pair is not None:
        pairs = [options.pair]
    elif paired:
        texts, pairs = map(list, zip(*(_split_pair(text, i) for i, text in enumerate(texts)), strict=True))
    elif classifier.takes_pairs and (late := [i for i, text in enumerate(texts) if "\t" in text]):
        raise ItemError(late[0], "has a tab, but the first text has none: give only pairs, or only single texts")
    return classifier.predictions(texts, pairs, options.top, options.threshold, truncate=options.truncate)


def _input_fields(text: str, classifier: LoadedModel, options: argparse.Namespace) -> dict[str, str]:
    if options.pair is not None or not classifier.takes_pairs or "\t" not in text:
        return {"text": text} if options.pair is None else {"text": text, "pair": options.pair}
    return dict(zip(("text", "pair"), _split_pair(text, 0), strict=True))


def _split_pair(text: str, index: int) -> tuple[str, str]:
    from manyheads.data.text.text_faults import ItemError

    parts = text.split("\t")
    if text.strip() and len(parts) != 2:
        raise ItemError(index, f"has {len(parts) - 1} tabs: expected two texts separated by one tab")
    return parts[0], parts[-1]

"""The command `manyheads embed`: vectors of texts or images, and their scores on labeled data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyheads.cli.lines import answered, refuse_files
from manyheads.cli.loading import PRECISION, model_for
from manyheads.cli.output import check_file, document, print_metrics
from manyheads.cli.parser import JSON, MODEL, Flag, Option, Positional, Verbs, whole
from manyheads.cli.tables import IMAGES, columns_for, reads_table, table_options, write_predictions
from manyheads.errors import UserError, extra
from manyheads.files import JsonObject, replacing

if TYPE_CHECKING:
    from manyheads.tasks.loading import LoadedModel
    from manyheads.tasks.tables import Inputs, RowTask

POOLS = ("mean", "first", "max", "tokens")
SOURCE = ("columns", "folder", "suffix")  # options that describe --data, too


def add(verbs: Verbs) -> None:
    verbs.add(
        "embed", _embed, "compute vectors of texts or images, from arguments or stdin", MODEL, JSON,
        Positional("TEXT|IMAGE", "without arguments and --data, read one text or image path per line of stdin; "
                   "without --out, print one vector per line", "rest", nargs="*"),
        Option("--out", "FILE", "write a table with the vectors: .npz or .parquet", Path),
        Option("--data", "PATH", "labeled texts or images with a test or validation split: embed them, and print the "
               "accuracy of the nearest neighbors and of a linear probe"),
        Option("--layer", "N", "index of the layer (default: the last)", whole(0, 10_000)),
        Option("--pool", "P", "mean, first, max or tokens (default: the pooling of a sentence-transformers directory, "
               "else mean; images: the features that a head reads)", choices=POOLS),
        Option("--prompt", "NAME", "prompt of a sentence-transformers directory (default: its own)"),
        Flag("--truncate", "shorten texts that exceed the model's maximum length"),
        *table_options("text", "image", "label"), *IMAGES, PRECISION,
        example="manyheads embed models/bert 'the cat sat' --out vectors.npz",
        usage="manyheads embed [OPTIONS] MODEL [TEXT|IMAGE ...]",
    )  # fmt: skip


def _embed(options: argparse.Namespace) -> None:
    if options.out is not None:
        check_file(options.out, (".npz", ".parquet"), "expected a name with .npz or .parquet")
    if options.data is not None and (options.rest or options.pool == "tokens"):
        raise UserError("--data scores one vector per item: leave out the texts, and --pool tokens")
    tabular = reads_table(options, ("out", "data"), SOURCE if options.data is not None else ())
    if tabular:
        if options.output.suffix.lower() in (".csv", ".tsv"):
            raise UserError(f"--output {options.output}: expected .parquet or .jsonl, because a cell holds a vector; "
                            "for .npz, give texts without --input, and --out FILE.npz")  # fmt: skip
        if options.pool == "tokens":
            raise UserError("--pool tokens gives several vectors for a row of --input: choose mean, first or max")
    predictor = model_for("embed", options.model, options.precision)
    settings: JsonObject = {"layer": options.layer, "pool": options.pool}
    if predictor.reads == "images":
        if options.truncate:
            raise UserError("--truncate applies to texts, but this model reads images")
        if options.prompt is not None:
            raise UserError("--prompt applies to texts, but this model reads images")
    else:
        settings |= {"truncate": options.truncate, "prompt": options.prompt}
        refuse_files(options.rest)
    if options.data is not None:
        return _score(predictor, options, settings)
    if tabular:
        return write_predictions(options, _rows(predictor, options, settings))
    rows = ((text, vector) for _, text, (vector, _) in answered(options.rest, lambda t: predictor.embed(t, **settings)))
    if options.out is not None:
        return _write(options.out, [{"input": text, "vector": vector} for text, vector in rows])
    if options.json:
        return document([{"input": text, "vector": vector.tolist()} for text, vector in rows])
    for _, vector in rows:
        for row in vector.reshape(-1, vector.shape[-1]):
            print(" ".join(f"{value:.6g}" for value in row))


def _rows(predictor: LoadedModel, options: argparse.Namespace, settings: JsonObject) -> RowTask:
    """Return the vectors of the texts or images in the table of --input."""
    import numpy as np

    from manyheads.cli.classify_table import image_reader
    from manyheads.data.images.checking import open_image
    from manyheads.data.readers.labeled import TEXTS
    from manyheads.tasks.images.objective import EVALUATION_BATCH
    from manyheads.tasks.tables import RowTask, choose_column, text_reader

    images = predictor.reads == "images"

    def text_vectors(rows: Sequence[Inputs]) -> list[JsonObject | str]:
        return [{"vector": vector.tolist()} for vector, _ in predictor.embed([text for (text,) in rows], **settings)]

    def image_vectors(rows: Sequence[Inputs]) -> list[JsonObject | str]:
        arrays, faults = [], dict[int, str]()
        for index, (image,) in enumerate(rows):
            try:
                arrays.append(predictor.preprocessing.array(open_image(image)))
            except UserError as error:
                faults[index] = str(error)
        found = iter(predictor.embed_arrays(arrays, **settings))
        return [faults[i] if i in faults else {"vector": next(found).vector.tolist()} for i in range(len(rows))]

    added = {"vector": list[np.float32]}
    if images:
        return RowTask(image_reader(predictor, options), image_vectors, added, rows=EVALUATION_BATCH)
    column = choose_column(options.input, "text", columns_for(options, "text").get("text"), TEXTS)
    return RowTask(text_reader(column), text_vectors, added)


def _score(predictor: LoadedModel, options: argparse.Namespace, settings: JsonObject) -> None:
    """Embed the training and test data of a labeled corpus, and print the scores of the vectors."""
    import numpy as np

    from manyheads.data.images.files import Columns as ImageColumns
    from manyheads.data.images.source import ImageSource
    from manyheads.data.readers.labeled import SCORES, SEVERAL, Columns
    from manyheads.data.sources.corpora import LabeledSource
    from manyheads.tasks.embedding import label_scores

    images = predictor.reads == "images"
    source: Any
    columns = columns_for(options, "image" if images else "text", "label")
    if images:
        places = ImageColumns(**columns, folder=options.folder, suffix=options.suffix)
        source = ImageSource(data=options.data, columns=places)
    else:
        source = LabeledSource(data=options.data, columns=Columns(**columns))
    try:
        splits = source.read()
    except UserError as error:
        # Training can predict numbers and several labels, and hints at it.
        if not any(hint in str(error) for hint in (SCORES, SEVERAL)):
            raise
        fault = "embed scores vectors by classes only: expected one label per item, found numbers or lists of labels"
        raise UserError(f"{options.data}: {fault}; omit --data to write the vectors") from None
    if not images and splits.train.second_texts is not None:
        raise UserError(f"{options.data}: found pairs of texts: expected single texts with labels")
    parts = {"train": splits.train, "test": splits.validation if splits.test is None else splits.test}
    rows = []
    for split, data in parts.items():
        names = [data.place(i) for i in range(len(data))] if images else list(data.texts)
        items = (data.image(i) for i in range(len(data))) if images else names
        vectors = predictor.embed(items, **settings)
        rows += [
            {"input": name, "split": split, "label": label, "vector": vector}
            for name, label, (vector, _) in zip(names, data.labels, vectors, strict=True)
        ]
    train, test = (
        (np.stack([row["vector"] for row in rows if row["split"] == split]), list(data.labels))
        for split, data in parts.items()
    )
    metrics = label_scores(*train, *test)
    if options.out is not None:
        _write(options.out, rows)
    document(metrics) if options.json else print_metrics(metrics)


def _write(out: Path, rows: list[JsonObject]) -> None:
    """Write rows with an input, a vector (D,) or (T, D), and further texts as a table with one vector per row.

    In a table of tokens, the column `token` has the index of the token in its input.
    """
    import numpy as np

    tokens = any(row["vector"].ndim == 2 for row in rows)
    counts = [len(row["vector"]) if tokens else 1 for row in rows]
    table: JsonObject = {
        name: np.repeat(np.array([row[name] for row in rows]), counts) for name in rows[0] if name != "vector"
    }
    if tokens:
        table["token"] = np.concatenate([np.arange(count) for count in counts])
    table["vector"] = np.concatenate([row["vector"].reshape(-1, row["vector"].shape[-1]) for row in rows])
    if out.suffix.lower() == ".npz":
        with replacing(out) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **table)
        return
    with extra("parquet", "writing Parquet"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    table["vector"] = pa.FixedSizeListArray.from_arrays(table["vector"].reshape(-1), table["vector"].shape[1])
    with replacing(out) as temporary:
        pq.write_table(pa.table(table), temporary)

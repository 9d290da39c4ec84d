"""Data files in every supported format."""

from __future__ import annotations

import gzip
import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image

from manyheads.data.images.checking import open_image
from manyheads.data.images.files import find_splits
from manyheads.data.images.labeled_images import read_images
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.data.readers.class_folders import class_folder_splits, text_files
from manyheads.data.readers.conll import read_conll
from manyheads.data.readers.documents import read_documents
from manyheads.data.readers.parallel import read_parallel
from manyheads.data.readers.squad import read_squad
from manyheads.data.readers.tables import table
from manyheads.data.readers.texts import read_texts
from manyheads.data.readers.treebank import read_treebank
from manyheads.data.sources.corpora import LabeledSource
from papers.nonlocal_net.clips import read_clip
from tests.stress.fuzzing.inputs import Files
from tests.stress.fuzzing.targets.target import Target

ROWS: list[dict[str, Any]] = [{"text": f"a text, number {i}", "label": "xy"[i % 2]} for i in range(4)]
PAIRS: list[dict[str, Any]] = [{"en": f"the cat {i}", "de": f"die Katze {i}"} for i in range(4)]
TAGGED: list[dict[str, Any]] = [{"tokens": [at, "rejects", "it"], "tags": ["B-ORG", "O", "O"]} for at in ("EU", "UN")]


def parquet(rows: list[dict[str, Any]], **options: Any) -> bytes:
    made = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), made, **options)
    return made.getvalue()


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def delimited(rows: list[dict[str, Any]], mark: str) -> bytes:
    return "".join(mark.join(map(str, cells)) + "\n" for cells in [rows[0], *(row.values() for row in rows)]).encode()


def tables(rows: list[dict[str, Any]]) -> list[Files]:
    """The same rows in every form."""
    lines, tabs = jsonl(rows), delimited(rows, "\t")
    return [
        {"a.jsonl": lines},
        {"a.tsv": tabs},
        {"a.csv": delimited([{k: f'"{v}"' for k, v in r.items()} for r in rows], ",")},
        {"a.parquet": parquet(rows)},
        {"a.parquet": parquet(rows, compression="zstd", use_dictionary=False)},
        {"a.jsonl.gz": gzip.compress(lines)},
        {"a.tsv.zst": pyarrow.compress(tabs, "zstd", asbytes=True)},
    ]


def first(folder: Path) -> Path:
    """The file of an example of one, whatever it is called by now."""
    return next(iter(sorted(folder.iterdir())), folder / "none.jsonl")


def strictly_and_not(read: Callable[[bool], object]) -> None:
    """Faulty rows are left out, and then, they are refused."""
    first_error: Exception | None = None
    try:
        read(True)
    except (ValueError, OSError) as error:
        first_error = error
    read(False)
    if first_error is not None:
        raise first_error


def _rows(folder: Path) -> None:
    for _ in table(first(folder)):
        pass
    strictly_and_not(lambda skip: LabeledSource(data=str(first(folder)), skip_bad_lines=skip).read())


def _parallel(folder: Path) -> None:
    names = sorted(path.name for path in folder.iterdir())
    corpus = str(folder / "a") if "a.en" in names else str(first(folder))
    strictly_and_not(lambda skip: read_parallel(corpus, "en", "de", skip_bad_lines=skip))


def _texts(folder: Path) -> None:
    def read(skip: bool) -> None:
        texts = read_texts(folder, skip_bad_lines=skip, cache_folder=folder / ".kept")
        texts.facts, texts.texts, texts.hashes  # noqa: B018  # read now
        read_documents(folder, skip_bad_lines=skip)

    strictly_and_not(read)


def _folders(folder: Path) -> None:
    from collections import Counter

    class_folder_splits(folder)
    list(text_files(folder, Counter()))
    strictly_and_not(lambda skip: LabeledSource(data=str(folder), skip_bad_lines=skip).read())


def _images(folder: Path) -> None:
    data = next(
        (
            path
            for path in sorted(folder.iterdir())
            if "images-idx3" in path.name or path.suffix in (".parquet", ".jsonl")
        ),
        folder,
    )
    strictly_and_not(lambda skip: read_images(data, skip_bad_lines=skip))
    find_splits(str(folder))


def _image(folder: Path) -> None:
    Preprocessing(8).array(open_image(first(folder)))
    read_clip(first(folder), 3)


def encoded(kind: str, mode: str = "RGB", **options: Any) -> bytes:
    made = io.BytesIO()
    pixels = np.arange(12 * 9 * 3, dtype=np.uint8).reshape(9, 12, 3)
    Image.fromarray(pixels).convert("L" if mode == "I;16" else "RGB").convert(mode).save(made, kind, **options)
    return made.getvalue()


def pictures() -> list[Files]:
    frames = [Image.new("RGB", (12, 9), (shade,) * 3) for shade in (50, 100)]
    several: dict[str, Any] = {"save_all": True, "append_images": frames}
    exif = Image.Exif()
    exif[0x0112] = 6
    kinds: list[tuple[str, bytes]] = [
        ("a.png", encoded("PNG")),
        ("b.png", encoded("PNG", "P")),
        ("c.png", encoded("PNG", "I;16")),
        ("d.png", encoded("PNG", "LA")),
        ("a.jpg", encoded("JPEG", exif=exif)),
        ("b.jpg", encoded("JPEG", "CMYK")),
        ("a.gif", encoded("GIF", "P", **several)),
        ("a.bmp", encoded("BMP")),
        ("a.webp", encoded("WEBP", lossless=True)),
        ("b.webp", encoded("WEBP", **several)),
        ("a.tiff", encoded("TIFF", compression="tiff_lzw")),
        ("b.tiff", encoded("TIFF", "L", **several)),
        ("e.png", encoded("PNG", **several)),
        ("a.jp2", encoded("JPEG2000")),
        ("a.ppm", encoded("PPM")),
    ]
    return [{name: content} for name, content in kinds]


def idx(array: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def _image_corpora(_: Path) -> list[Files]:
    one, two = encoded("PNG"), encoded("PNG", "L")
    pixels, labels = idx(np.arange(4 * 5 * 5, dtype=np.uint8).reshape(4, 5, 5)), idx(np.array([0, 1, 0, 1], np.uint8))
    cells = [{"image": {"bytes": one, "path": None}, "label": 0}, {"image": {"bytes": two, "path": None}, "label": 1}]
    return [
        {"cat/1.png": one, "cat/2.png": two, "dog/1.png": two},
        {"train/cat/1.png": one, "train/dog/2.png": two, "val/cat/3.png": one, "test/dog/4.png": two},
        {"train-images-idx3-ubyte": pixels, "train-labels-idx1-ubyte": labels, "labels.txt": b"zero\none\n"},
        {"train-images-idx3-ubyte.gz": gzip.compress(pixels), "train-labels-idx1-ubyte.gz": gzip.compress(labels)},
        {"train.parquet": parquet(cells), "labels.txt": b"cat\ndog\n"},
        {
            "train.jsonl": jsonl([{"image": "1.png", "label": "cat"}, {"image": "2.png", "label": "dog"}]),
            "1.png": one,
            "2.png": two,
        },
    ]


def _squad(_: Path) -> list[Files]:
    answers = [{"text": "in Paris", "answer_start": 8}]
    asked = [
        {"id": str(i), "question": "Where?", "answers": answers if i else [], "is_impossible": not i} for i in range(2)
    ]
    whole: dict[str, Any] = {
        "data": [{"title": "A", "paragraphs": [{"context": "He lives in Paris.", "qas": asked[1:]}]}]
    }
    whole["data"].append({"title": "B", "paragraphs": [{"context": "Nobody knows.", "qas": asked[:1]}]})
    whole["data"][0]["paragraphs"][0]["qas"][0]["answers"][0]["answer_start"] = 9
    rows = [
        {
            "id": "1",
            "title": "A",
            "context": "He lives in Paris.",
            "question": "Where?",
            "answers": {"text": ["in Paris"], "answer_start": [9]},
        }
    ]
    flat = [{"context": "He lives in Paris.", "question": "Where?", "answer": "in Paris", "answer_start": "9"}]
    return [
        {"a.json": json.dumps(whole).encode()},
        {"a.jsonl": jsonl(rows)},
        {"a.parquet": parquet(rows)},
        {"a.tsv": delimited(flat, "\t")},
    ]


def _conll(_: Path) -> list[Files]:
    columns = b"-DOCSTART- O\n\nEU B-ORG\nrejects O\nGerman B-MISC\ncall I-MISC\n\nPeter B-PER\nBlackburn I-PER\n"
    return [
        {"a.conll": columns},
        {"a.tsv": columns.replace(b" ", b"\t")},
        {"a.jsonl": jsonl(TAGGED)},
        {"a.parquet": parquet(TAGGED)},
        {"a.csv": b"tokens,tags\nEU rejects,B-ORG O\n"},
    ]


def _treebank(_: Path) -> list[Files]:
    def row(number: str, form: str, head: str = "_", relation: str = "_", misc: str = "_") -> str:
        return "\t".join([number, form, form.lower(), "X", "_", "_", head, relation, "_", misc]) + "\n"

    text = "# newdoc id = a\n" + row("1", "I", "4", "nsubj", "Entity=(1-person-giv)") + row("2-3", "don't")
    text += row("2", "do", "4", "aux", "SpaceAfter=No") + row("3", "n't", "4", "advmod") + row("3.1", "elided")
    text += row("4", "know", "0", "root", "SpaceAfter=No|X=y") + row("5", ".", "4", "punct")
    nested = "".join(
        row(str(i), "w", str(i - 1), "dep" if i > 1 else "root", f"Entity={mark}")
        for i, mark in enumerate(("(1-x(2-y", "2)", "(4[1/2]-w)", "(5-v", "1)(4[2/2]-w)", "5)"), 1)
    )
    return [{"a.conllu": text.encode()}, {"a.conllu": nested.encode()}]


TARGETS = {
    "rows": Target(lambda _: tables(ROWS), _rows),
    "parallel": Target(
        lambda _: [
            *tables(PAIRS)[:5],
            {"a.en": b"a cat\na dog\n", "a.de": b"eine Katze\nein Hund\n"},
            {"a.jsonl": jsonl([{"translation": pair} for pair in PAIRS])},
        ],
        _parallel,
    ),
    "conll": Target(
        _conll, lambda folder: strictly_and_not(lambda skip: read_conll(first(folder), skip_bad_lines=skip))
    ),
    "squad": Target(
        _squad, lambda folder: strictly_and_not(lambda skip: read_squad(first(folder), skip_bad_lines=skip))
    ),
    "treebank": Target(
        _treebank, lambda folder: strictly_and_not(lambda skip: read_treebank(first(folder), skip_bad_lines=skip))
    ),
    "texts": Target(
        lambda _: [
            *tables(ROWS),
            {"a.txt": b"A text. Of two!\n\nAnother one.\n" * 3, "b.txt": b"More of it\n"},
            {"a.txt.gz": gzip.compress(b"A text.\n\nAnother\n")},
        ],
        _texts,
    ),
    "class-folders": Target(
        lambda _: [
            {"pos/1.txt": b"good", "pos/2.txt": b"fine", "neg/1.txt": b"bad", "neg/2.txt": b"dull"},
            {
                "train/pos/1.txt": b"good",
                "train/pos/2.txt": b"fine",
                "train/neg/1.txt": b"bad",
                "train/neg/2.txt": b"dull",
                "test/pos/1.txt": b"good",
            },
        ],
        _folders,
    ),
    "images": Target(_image_corpora, _images, readable=("/etc/passwd",)),
    "image": Target(lambda _: pictures(), _image),
}

"""The forms in which images with labels are kept, each read into one entry an image; nothing is decoded here.

    DIR/CLASS/IMAGE            a folder for each class, with folders below it or not; hidden files are left out, and
                               links are followed
    FILE.parquet               a column `image` (or `img`, `bytes`) of bytes or of {bytes, path}, and a column `label`
    FILE.jsonl                 one {"image": "cat/1.png", "label": "cat"} a line; paths are relative to the file
    train-images-idx3-ubyte    and train-labels-idx1-ubyte beside it (MNIST's form), or both with .gz
    hub:NAME[@REVISION]#SPLIT  of the Hugging Face Hub, by the library `datasets`

Labels may be numbers; a `labels.txt` beside a file (or the Hub) says what 0, 1, ... are called, one name a line.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyheads.data.splits import UTF8, VALIDATION, Splits, is_split, lines_of, splits_among

FILES = (".parquet", ".jsonl")
_PICTURES = (".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
HUB = "hub:"
_IMAGES = ("image", "img", "bytes", "path", "file_name")
_FORMS = "a folder with a folder for each class, a .parquet or .jsonl file, or an IDX file (...-images-idx3-ubyte)"

Source = bytes | Path | NDArray[np.uint8]  # an encoded image, its file, or its pixels (Y, X) or (Y, X, 3)


class Entry(NamedTuple):
    """An image with its label, or why there is none."""

    place: str  # as an error names it
    source: Source | None
    label: Any
    fault: str = ""
    remedy: str = ""


def entries(path: str | Path) -> tuple[Iterator[Entry], tuple[str, ...]]:
    """(what is there; the names of the labels 0, 1, ..., if something says them).

    Raises FileNotFoundError or a one-line ValueError.
    """
    if str(path).startswith(HUB):
        return _hub(str(path))
    file = Path(path)
    if not file.exists():
        raise FileNotFoundError(f"{file}: no such file or directory; give {_FORMS}")
    if file.is_dir():
        return _folders(file), ()
    if file.suffix == ".parquet":
        return _parquet(file), _names_beside(file)
    if file.suffix == ".jsonl":
        return _jsonl(file), _names_beside(file)
    if _is_idx(file.name):
        return _idx(file), _names_beside(file)
    raise ValueError(f"{file}: cannot tell what it is: expected {_FORMS}; unpack an archive first")


def find_splits(data: str, *, validation: str | None = None, test: str | None = None) -> Splits:
    """The training, validation and test data of a directory or of a data set on the Hub; else `data` is for training.

    `validation` and `test` take precedence over those found. Raises FileNotFoundError or ValueError.
    """
    found = Splits(data, None, [])
    if data.startswith(HUB) and "#" not in data:
        there = splits_among(Path(), _load(data))
        of = {name: f"{data}#{name}" for name in filter(None, (there.train, there.validation, *there.test))}
        found = Splits(of.get(there.train or ""), of.get(there.validation or ""), [of[name] for name in there.test])
    elif Path(data).is_dir():
        found = _splits_of(Path(data))
    if found.train is None:
        told = f"{data}: no training data; expected train (or train.parquet, train.jsonl, ...) in it"
        if others := [Path(path).name for path in filter(None, (found.validation, *found.test))]:
            told += f"; taken for other splits: {', '.join(others)}; rename what is a class"
        raise FileNotFoundError(told)
    found = Splits(found.train, validation or found.validation, [test] if test else found.test)
    if len(found.test) > 1:
        raise ValueError(f"{data}: several test sets ({', '.join(found.test)}); name one: test=PATH")
    return found


def _splits_of(folder: Path) -> Splits:
    inside = [path for path in _visible(folder) if path.is_dir() or path.suffix in FILES or _is_idx(path.name)]
    folders = [path for path in inside if path.is_dir()]
    named = [path for path in folders if is_split(path.name, ("train", *VALIDATION, "test"))]
    files = [path.name for path in inside if not path.is_dir()]
    mnist = [str(folder / name) for name in files if name.startswith("t10k")]
    split_files = mnist or splits_among(folder, files) != (None, None, [])
    if len(named) < len(folders) and not split_files and not any(map(_holds_folders, named)):
        return Splits(str(folder), None, [])  # the class folders themselves, be one called `train` or `test_card`
    found = splits_among(folder, [*files, *(path.name for path in named)])
    if found.train is not None and Path(found.train).is_dir() and not _holds_folders(Path(found.train)):
        expected = f"expected {found.train}/CLASS/IMAGE; if it is a class itself, rename it"
        raise ValueError(f"{found.train}: no class folders in it; {expected}")
    return Splits(found.train, found.validation, found.test + mnist)


def _holds_folders(folder: Path) -> bool:
    return any(path.is_dir() for path in _visible(folder))


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _folders(folder: Path) -> Iterator[Entry]:
    if not _holds_folders(folder):
        raise ValueError(f"{folder}: no class folders in it; expected {folder}/CLASS/IMAGE")
    for path in _visible(folder):
        if path.is_dir():
            yield from _class_folder(path)
        elif not path.exists():
            yield _broken(path, None)
        elif path.suffix.lower() in _PICTURES:
            yield Entry(_shown(path), None, None, "an image beside the class folders", "move it into one, or remove it")


def _class_folder(folder: Path) -> Iterator[Entry]:
    label = folder.name
    if _shown(Path(label)) != label:
        yield Entry(
            _shown(folder.parent), None, None, f"the class folder {label!r}: its name is not UTF-8", "rename it"
        )
        return
    empty = True
    for entry in _below(folder, label, [folder.resolve()]):
        yield entry
        empty = False
    if empty:
        yield Entry(str(folder), None, label, "the class folder is empty", "put images into it, or remove it")


def _below(folder: Path, label: str, above: list[Path]) -> Iterator[Entry]:
    """The files in a folder and those below it; `above` are the real places on the way, for links that lead back."""
    for path in _visible(folder):
        if path.is_dir():
            real = path.resolve()
            if any(place.is_relative_to(real) for place in above):
                yield Entry(_shown(path), None, label, f"a link back to {real}, which holds it", "remove it")
            else:
                yield from _below(path, label, [*above, real])
        elif path.is_file():
            yield Entry(_shown(path), path, label)
        else:
            yield _broken(path, label)


def _broken(path: Path, label: str | None) -> Entry:
    return Entry(_shown(path), None, label, "a broken link" if path.is_symlink() else "no regular file", "remove it")


def _shown(path: Path) -> str:
    """A path that can be printed and recorded, whatever bytes its names are made of."""
    return str(path).encode(errors="backslashreplace").decode()


def _from_cell(place: str, value: Any, label: Any, folder: Path) -> Entry:
    """The image that a column holds: bytes, a path, or {bytes, path} as the library `datasets` writes it."""
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        return Entry(place, value, label)
    if isinstance(value, str) and value:
        path = folder / value
        try:
            there = path.is_file()
        except OSError:  # such as a name of a thousand characters
            return Entry(place, None, label, f"{value[:40]!r}... is no path of an image", "write its bytes or its path")
        if not there:
            return Entry(place, None, label, f"{path}: no such image file", "correct the path")
        return Entry(place, path, label)
    return Entry(place, None, label, f"the image is {type(value).__name__}", "write its bytes or its path")


def _columns(file: Path, there: list[str]) -> tuple[str, str]:
    image = next((name for name in _IMAGES if name in there), None)
    if image is None or "label" not in there:
        missing = "image" if image is None else "label"
        raise ValueError(f"{file}: no column {missing!r}: it has {', '.join(map(repr, there))}; rename one")
    return image, "label"


def _parquet(file: Path) -> Iterator[Entry]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file)
        image, label = _columns(file, table.schema_arrow.names)
        number = 0
        for batch in table.iter_batches(256, columns=[image, label]):
            for row in batch.to_pylist():
                number += 1
                yield _from_cell(f"{file}:{number}", row[image], row[label], file.parent)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{file}: not a Parquet file ({str(error).splitlines()[0]}); write it again") from None


def _jsonl(file: Path) -> Iterator[Entry]:
    for number, line in enumerate(lines_of(file), 1):
        place = f"{file}:{number}"
        if line is None:
            yield Entry(place, None, None, *UTF8)
        elif line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield Entry(place, None, None, f"not JSON ({getattr(error, 'msg', error)})", "write one object a line")
                continue
            image = next((name for name in _IMAGES if isinstance(row, dict) and name in row), None)
            if image is None or "label" not in row:
                yield Entry(place, None, None, "no object with image and label", 'write {"image": PATH, "label": NAME}')
            else:
                yield _from_cell(place, row[image], row["label"], file.parent)


def _is_idx(name: str) -> bool:
    return "images" in name and "idx" in name


def _idx(file: Path) -> Iterator[Entry]:
    beside = file.with_name(file.name.replace("images", "labels").replace("idx3", "idx1"))
    if not beside.is_file():
        raise FileNotFoundError(f"{beside}: no such file; the labels of {file.name} are expected in it")
    images, labels = _idx_array(file, 3), _idx_array(beside, 1)
    if len(images) != len(labels):
        raise ValueError(f"{file}: {len(images):,} images but {len(labels):,} labels in {beside.name}")
    for number, (image, label) in enumerate(zip(images, labels, strict=True), 1):
        yield Entry(f"{file}:{number}", image, int(label))


def _idx_array(file: Path, dimensions: int) -> NDArray[np.uint8]:
    """Unsigned bytes in the format that MNIST came in: 0, 0, type 8, dimensions, the size of each (big-endian)."""
    try:
        data = (gzip.open if file.suffix == ".gz" else open)(file, "rb").read()
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{file}: cannot be read ({error}); fetch it again") from None
    start = 4 + 4 * dimensions
    if len(data) < start or data[:4] != bytes((0, 0, 8, dimensions)):
        raise ValueError(f"{file}: not an IDX file of bytes in {dimensions} dimensions; fetch it again")
    sizes = [int(size) for size in np.frombuffer(data, ">u4", dimensions, 4)]
    if len(data) - start != math.prod(sizes) or 0 in sizes:
        said = " x ".join(f"{size:,}" for size in sizes)
        raise ValueError(f"{file}: {len(data) - start:,} bytes where it says {said}; fetch it again")
    return np.frombuffer(data, np.uint8, offset=start).reshape(sizes)


def _names_beside(file: Path) -> tuple[str, ...]:
    path = file.with_name("labels.txt")
    if not path.is_file():
        return ()
    lines = lines_of(path)
    for number, line in enumerate(lines, 1):
        if line is None or not line.strip() or line in lines[: number - 1]:
            raise ValueError(f"{path}:{number}: {line!r} is no name of its own; write one name a line, none twice")
    return tuple(line.strip() for line in lines if line)


def _load(data: str) -> Any:
    """A data set, or one split of it, of the Hub."""
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError as error:
        raise ValueError(f"{data} needs {error.name}: pip install 'manyheads[hub]'") from None
    name, _, split = data.removeprefix(HUB).partition("#")
    name, _, revision = name.partition("@")
    try:
        return datasets.load_dataset(name, split=split or None, revision=revision or None)
    except Exception as error:  # of the library, of what it fetches with, of the network
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{data}: cannot be fetched ({reason}); expected hub:NAME[@REVISION][#SPLIT]") from None


def _hub(data: str) -> tuple[Iterator[Entry], tuple[str, ...]]:
    rows = _load(data)
    if isinstance(rows, dict):
        raise ValueError(f"{data}: name a split, as {data}#train: it has {', '.join(rows)}")
    image, label = _columns(Path(data), list(rows.features))
    if hasattr(rows.features[image], "decode"):
        import datasets

        rows = rows.cast_column(image, datasets.Image(decode=False))
    places = (f"{data}:{number}" for number in range(1, len(rows) + 1))
    found = (_from_cell(place, row[image], row[label], Path()) for place, row in zip(places, rows, strict=True))
    return found, tuple(getattr(rows.features[label], "names", ()))

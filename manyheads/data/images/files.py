"""The forms in which images with labels are kept, each read into one entry an image; nothing is decoded here.

    DIR/CLASS/IMAGE            a folder for each class, with folders below it or not; hidden files are left out, and
                               links are followed
    FILE.parquet               a column `image` (or `img`, `bytes`) of bytes or of {bytes, path}, and a column `label`
    FILE.jsonl, .csv, .tsv     a row an image, as {"image": "cat/1.png", "label": "cat"}; paths are relative to the file
    FILE.tar                   items as WebDataset has them (`tar.py`)
    train-images-idx3-ubyte    and train-labels-idx1-ubyte beside it (MNIST's form), or both with .gz
    hub:NAME[@REVISION]#SPLIT  of the Hugging Face Hub, by the library `datasets`

A corpus may be several of these, joined by commas, as train-00000-of-00002.parquet and train-00001-of-00002.parquet
are when a folder holds them: they are read one after the other.

Labels may be numbers; a `labels.txt` beside a file (or the Hub) says what 0, 1, ... are called, one name a line.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyheads.data.images.decoding import ImageFault
from manyheads.data.images.tar import Member, samples
from manyheads.data.readers.compressed import kind
from manyheads.data.readers.roles import NUMBERED, folders_in, split_folders, splits_among, visible, within
from manyheads.data.readers.rows import TABLES, table
from manyheads.data.readers.splits import Splits, folder_of, lines_of, parts_of
from manyheads.data.sources.source import HUB
from manyheads.errors import UserError, extra

PICTURES = (".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_LARGEST_IDX = 2**31  # bytes of pixels
_IMAGES = ("image", "img", "bytes", "path", "file_name")
_FILES = (*TABLES, ".tar")
_FORMS = f"a folder with a folder for each class, a {', '.join(_FILES)} or IDX file (...-images-idx3-ubyte)"


@dataclass(frozen=True)
class Columns:
    """The names of a table's columns, where they are not the usual ones: `image`, `img`, `bytes`, `path` or
    `file_name`, and `label`."""

    image: str | None = None
    label: str | None = None


class Entry(NamedTuple):
    """An image with its label, or why there is none."""

    place: str  # as an error names it
    source: bytes | Path | Member | NDArray[np.uint8] | None  # an encoded image, its file, or its pixels (Y, X)
    label: Any = None
    fault: ImageFault | None = None


def entries(path: str | Path, columns: Columns, *, images: bool = True) -> tuple[Iterator[Entry], tuple[str, ...]]:
    """(what is there; the names of the labels 0, 1, ..., if something says them).

    images  False: of a file that holds images read the labels alone

    Raises FileNotFoundError or a one-line UserError.
    """
    if str(path).startswith(HUB):
        return _hub(str(path), columns)
    file = Path(path)
    if len(parts := parts_of(str(path))) > 1:
        return _shards([entries(part, columns, images=images) for part in parts], str(path))
    if not file.exists():
        raise FileNotFoundError(f"{file}: no such file or directory; give {_FORMS}")
    if file.is_dir():
        return _folders(file), ()
    if not file.is_file():
        raise UserError(f"{file}: no regular file (a pipe or a device); give {_FORMS}")
    if kind(file) in TABLES:
        return _table(file, columns, images), _names_beside(file)
    if file.suffix == ".tar":
        return _tar(file, columns), _names_beside(file)
    if _is_idx(file.name):
        return _idx(file, images), _names_beside(file)
    raise UserError(f"{file}: cannot tell what it is: expected {_FORMS}; unpack an archive first")


def find_splits(data: str, *, validation: str | None = None, test: str | None = None) -> Splits:
    """The training, validation and test data of a directory or of a data set on the Hub; else `data` is for training.

    A directory holds a corpus for each split, by its name (`roles.py`); a folder of class folders alone is training
    data. `validation` and `test` take precedence over what it holds. Raises
    FileNotFoundError or UserError.
    """
    splits = Splits(data, None, [])
    if data.startswith(HUB) and "#" not in data:
        names = splits_among(Path(), _load(data))
        of = {name: f"{data}#{name}" for name in filter(None, (names.train, names.validation, *names.test))}
        splits = Splits(of.get(names.train or ""), of.get(names.validation or ""), [of[name] for name in names.test])
    elif folder := folder_of(data):
        splits = _splits_of(folder)
    if splits.train is None:
        fault = f"{data}: no training data; expected train (or train.parquet, train.jsonl, ...) in it"
        if others := [Path(path).name for path in filter(None, (splits.validation, *splits.test))]:
            fault += f"; taken for other splits: {', '.join(others)}; rename what is a class"
        raise FileNotFoundError(fault)
    splits = splits.given(validation, test)
    if len(splits.test) > 1:
        raise UserError(f"{data}: several test sets ({', '.join(splits.test)}); name one: test=PATH")
    return splits


def _splits_of(folder: Path) -> Splits:
    folders = folders_in(folder)
    named = [path.name for path in split_folders(folders)]
    files = [path.name for path in visible(folder) if not path.is_dir() and _is_corpus(path)]
    if folders and not named and splits_among(folder, files, shards=NUMBERED) == (None, None, []):
        return Splits(str(folder), None, [])  # the class folders themselves
    splits = splits_among(folder, [*files, *named], shards=None if named else NUMBERED)
    if splits.train is not None and Path(splits.train).is_dir() and not folders_in(Path(splits.train)):
        expected = f"expected {splits.train}/CLASS/IMAGE; if it is a class itself, rename it"
        raise UserError(f"{splits.train}: no class folders in it; {expected}")
    return splits.mapped(lambda path: str(within(Path(path))) if "," not in path and Path(path).is_dir() else path)


def _folders(folder: Path) -> Iterator[Entry]:
    if not folders_in(folder):
        raise UserError(f"{folder}: no class folders in it; expected {folder}/CLASS/IMAGE")
    for path in visible(folder):
        if path.is_dir():
            yield from _class_folder(path, folder.resolve())
        elif not path.exists():
            yield _broken(path)
        elif path.suffix.lower() in PICTURES:
            yield _faulty(_shown(path), "an image beside the class folders", "move it into one, or remove it")


def _faulty(place: str, fault: str, hint: str) -> Entry:
    return Entry(place, None, fault=ImageFault(fault, hint))


def _class_folder(folder: Path, parent: Path) -> Iterator[Entry]:
    label, real = folder.name, folder.resolve()
    if parent.is_relative_to(real):
        yield _faulty(_shown(folder), f"a link back to {real}, which holds it", "remove it")
        return
    if _shown(Path(label)) != label:
        yield _faulty(_shown(folder.parent), f"the class folder {label!r}: its name is not UTF-8", "rename it")
        return
    empty = True
    for entry in _below(folder, label, [real]):
        yield entry
        empty = False
    if empty:
        yield _faulty(str(folder), "the class folder is empty", "put images into it, or remove it")


def _below(folder: Path, label: str, above: list[Path]) -> Iterator[Entry]:
    """The files in a folder and those below it; `above` are the real places on the way, for links that lead back."""
    for path in visible(folder):
        if path.is_dir():
            real = path.resolve()
            if any(place.is_relative_to(real) for place in above):
                yield _faulty(_shown(path), f"a link back to {real}, which holds it", "remove it")
            else:
                yield from _below(path, label, [*above, real])
        elif path.is_file():
            yield Entry(_shown(path), path, label)
        else:
            yield _broken(path)


def _broken(path: Path) -> Entry:
    return _faulty(_shown(path), "a broken link" if path.is_symlink() else "no regular file", "remove it")


def _shown(path: Path) -> str:
    """A path that can be printed and recorded, whatever bytes its names are made of."""
    return str(path).encode(errors="backslashreplace").decode()


def _from_cell(place: str, value: Any, label: Any, folder: Path, images: bool = True) -> Entry:
    """The image that a column holds: bytes, a path, or {bytes, path} as the library `datasets` writes it."""
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        return Entry(place, value, label)
    if isinstance(value, str) and value:
        path = folder / value
        try:
            exists = path.is_file()
        except (OSError, ValueError):  # such as a name of a thousand characters, or with a zero byte
            return _faulty(place, f"{value[:40]!r}... is no path of an image", "write its bytes or its path")
        return (
            Entry(place, path, label) if exists else _faulty(place, f"{path}: no such image file", "correct the path")
        )
    if not images:
        return Entry(place, None, label)
    kind = "empty" if value == "" else type(value).__name__
    return _faulty(place, f"the image is {kind}", "write its bytes or its path")


def _chosen(columns: Columns, names: Iterable[str]) -> tuple[str, str] | str:
    """The columns of image and label among those of these names, or which one there is not."""
    image = columns.image or next((name for name in _IMAGES if name in names), "image")
    label = columns.label or "label"
    return next((name for name in (image, label) if name not in names), "") or (image, label)


def _table(file: Path, columns: Columns, images: bool) -> Iterator[Entry]:
    if file.stat().st_size == 0:  # which is no fault of a file of no rows
        return
    label, form = columns.label or "label", kind(file)
    wanted = [label, *((columns.image,) if columns.image else _IMAGES)] if images else [label]
    for row in table(file, columns=wanted):
        chosen = _chosen(columns, row.cells) if images or form != ".parquet" else ("", label)
        if row.fault:
            yield _faulty(row.place, row.fault, row.hint)
        elif not isinstance(chosen, str):
            image, label = chosen
            yield _from_cell(row.place, row.cells.get(image), row.cells.get(label), file.parent, images)
        elif form == ".jsonl":
            yield _faulty(row.place, f"no {chosen!r} in the object", 'write {"image": PATH, "label": NAME}')
        else:
            raise UserError(_without(file, chosen, next(table(file)).cells))  # in all columns


def _without(place: object, column: str, names: Iterable[str]) -> str:
    named = ", ".join(map(repr, names))
    return f"{place}: no column {column!r}: it has {named}; rename one, or name it: columns.image=, columns.label="


def _tar(file: Path, columns: Columns) -> Iterator[Entry]:
    for sample in samples(file, PICTURES, columns.label or "label"):
        yield Entry(f"{file}:{sample.key}", sample.image, sample.label, sample.fault)


def _shards(
    shards: list[tuple[Iterator[Entry], tuple[str, ...]]], path: str
) -> tuple[Iterator[Entry], tuple[str, ...]]:
    if len({names for _, names in shards}) > 1:
        raise UserError(f"{path}: the labels.txt beside them differ; write the same beside all")
    return chain.from_iterable(entries for entries, _ in shards), shards[0][1]


def _is_corpus(file: Path) -> bool:
    return kind(file) in TABLES or file.suffix == ".tar" or _is_idx(file.name)


def _is_idx(name: str) -> bool:
    return "images" in name and "idx" in name


def labels_beside(file: Path) -> Path:
    """Where the labels of MNIST's images are."""
    return file.with_name(file.name.replace("images", "labels").replace("idx3", "idx1"))


def _idx(file: Path, images: bool) -> Iterator[Entry]:
    beside = labels_beside(file)
    if not beside.is_file():
        raise FileNotFoundError(f"{beside}: no such file; the labels of {file.name} are expected in it")
    labels = _idx_array(beside, 1)
    pixels = _idx_array(file, 3) if images else labels
    if len(pixels) != len(labels):
        raise UserError(f"{file}: {len(pixels):,} images but {len(labels):,} labels in {beside.name}")
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True), 1):
        yield Entry(f"{file}:{number}", image if images else None, int(label))


def _idx_array(file: Path, dimensions: int) -> NDArray[np.uint8]:
    """Unsigned bytes in the format that MNIST came in: 0, 0, type 8, dimensions, the size of each (big-endian). No more
    than one byte beyond that is read: a gzip file of a few megabytes can hold gigabytes."""
    start = 4 + 4 * dimensions
    try:
        with gzip.open(file) if file.suffix == ".gz" else open(file, "rb") as data:
            header = data.read(start)
            if len(header) < start or header[:4] != bytes((0, 0, 8, dimensions)):
                raise UserError(f"{file}: not an IDX file of bytes in {dimensions} dimensions; fetch it again")
            sizes = struct.unpack(f">{dimensions}I", header[4:])
            named = f"{' x '.join(f'{size:,}' for size in sizes)} bytes"
            if not 0 < math.prod(sizes) <= _LARGEST_IDX:
                raise UserError(f"{file}: it says {named}: expected 1 to {_LARGEST_IDX:,}; fetch it again")
            content = data.read(math.prod(sizes) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{file}: cannot be read ({error}); fetch it again") from None
    if len(content) != math.prod(sizes):
        held = "more" if len(content) > math.prod(sizes) else f"{len(content):,} bytes"
        raise UserError(f"{file}: {held} where it says {named}; fetch it again")
    return np.frombuffer(content, np.uint8).reshape(sizes)


def _names_beside(file: Path) -> tuple[str, ...]:
    path = file.with_name("labels.txt")
    if not path.is_file():
        return ()
    lines = lines_of(path)
    for number, line in enumerate(lines, 1):
        if line is None or not line.strip() or line in lines[: number - 1]:
            raise UserError(f"{path}:{number}: {line!r} is no name of its own; write one name a line, none twice")
    return tuple(line.strip() for line in lines if line)


def _load(data: str) -> Any:
    """A data set, or one split of it, of the Hub."""
    with extra("hub", data):
        import datasets  # type: ignore[import-untyped]
    name, _, split = data.removeprefix(HUB).partition("#")
    name, _, revision = name.partition("@")
    try:
        return datasets.load_dataset(name, split=split or None, revision=revision or None)
    except Exception as error:  # of the library, of what it fetches with, of the network
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{data}: cannot be fetched ({reason}); expected hub:NAME[@REVISION][#SPLIT]") from None


def _hub(data: str, columns: Columns) -> tuple[Iterator[Entry], tuple[str, ...]]:
    rows = _load(data)
    if isinstance(rows, dict):
        raise UserError(f"{data}: name a split, as {data}#train: it has {', '.join(rows)}")
    chosen = _chosen(columns, rows.features)
    if isinstance(chosen, str):
        raise UserError(_without(data, chosen, rows.features))
    image, label = chosen
    if hasattr(rows.features[image], "decode"):
        import datasets

        rows = rows.cast_column(image, datasets.Image(decode=False))
    cells = (_from_cell(f"{data}:{number}", row[image], row[label], Path()) for number, row in enumerate(rows, 1))
    return cells, tuple(getattr(rows.features[label], "names", ()))

"""Readers of labeled images in several formats. Each reader lists the images with their labels, without decoding them.

    DIR/CLASS/IMAGE            one folder per class, with optional subfolders; hidden files are ignored, links are
                               followed
    FILE.parquet               a column `image` (or `img`, `bytes`) of bytes or of {bytes, path}, and a column `label`
    FILE.jsonl, .csv, .tsv     one row per image, such as {"image": "cat/1.png", "label": "cat"}; paths are relative to
                               the file
    FILE.tar                   samples in the WebDataset format (`tar.py`)
    train-images-idx3-ubyte    with train-labels-idx1-ubyte in the same folder (format of MNIST), or both with .gz
    hub:NAME[@REVISION]#SPLIT  Hugging Face Hub, through the library `datasets`

Several files or folders, joined by commas, form one corpus and are read one after the other. Shards in a folder, such
as train-00000-of-00002.parquet and train-00001-of-00002.parquet, also form one corpus.

If labels are the numbers 0, 1, ..., a file `labels.txt` in the same folder gives the label names, one per line. For a
data set on the Hub, its description gives them.
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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyheads.data.images.decoding import ImageFault
from manyheads.data.images.tar import Sample, samples
from manyheads.data.readers.compressed import format_suffix
from manyheads.data.readers.label_lists import label_cell
from manyheads.data.readers.memory import Rows
from manyheads.data.readers.roles import NUMBERED, class_folders_in, folders_in, split_folders, splits_among, visible
from manyheads.data.readers.rows import BadRow, Cells, Row
from manyheads.data.readers.splits import Splits, folder_of, lines_of, parts_of
from manyheads.data.readers.tables import TABLES, is_table, table
from manyheads.data.sources.source import HUB
from manyheads.errors import UserError, extra

PICTURES = (".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_MAX_IDX_BYTES = 2**31  # maximum number of bytes of decoded pixels
IMAGES = ("image", "img", "bytes", "path", "file_name")
_FILES = (*TABLES, ".tar")
_FORMS = f"a folder with one subfolder per class, a {', '.join(_FILES)} or IDX file (...-images-idx3-ubyte)"


@dataclass(frozen=True)
class Columns:
    """Names of the image column and the label column in a table.

    image   name of the image column. By default, `image`, `img`, `bytes`, `path` or `file_name`
    label   name of the label column, or names of the columns with a 0 or 1 for each label. By default, `label`
    folder  folder of the images, relative to the folder of the table. By default, the folder of the table
    suffix  text that is added to each file name in the table, such as .jpg
    """

    image: str | None = None
    label: str | tuple[str, ...] | None = None
    folder: str | None = None
    suffix: str | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of all label columns."""
        return self.label if isinstance(self.label, tuple) else (self.label or "label",)

    def sample(self, row: Row[Cells], image: str, label: object, *, images: bool = True) -> Sample:
        """Return the image in the column `image` of a row of a table. The sample gets the label `label`."""
        value, folder = row.cells.get(image), Path(row.file).parent / (self.folder or "")
        if self.suffix and isinstance(value, str | int) and value != "":
            value = f"{value}{self.suffix}"
        return _from_cell(row.place, value, label, folder, images)._replace(number=row.number)


def labeled_samples(
    path: str | Path | Rows, columns: Columns, *, images: bool = True
) -> tuple[Iterator[Sample], tuple[str, ...]]:
    """Return the images of a corpus as an iterator over samples, and the names of the labels 0, 1, ..., if known.

    images  if False, read only the labels from a file that contains both images and labels

    Raises FileNotFoundError, or a one-line UserError if the corpus cannot be read.
    """
    if isinstance(columns.label, tuple) and not isinstance(path, Rows) and not all(map(is_table, parts_of(str(path)))):
        raise UserError(f"{path}: several columns.label apply to tables: expected {', '.join(TABLES)}")
    if isinstance(path, Rows):
        return _table(path, columns, images), ()
    if str(path).startswith(HUB):
        return _hub(str(path), columns)
    file = Path(path)
    if len(parts := parts_of(str(path))) > 1:
        return _shards([labeled_samples(part, columns, images=images) for part in parts], str(path))
    if not file.exists():
        raise FileNotFoundError(f"{file}: no such file or directory; give {_FORMS}")
    if file.is_dir():
        return _folders(file), ()
    if not file.is_file():
        raise UserError(f"{file}: not a regular file (a pipe or a device); give {_FORMS}")
    if is_table(file):
        return _table(file, columns, images), _read_label_names(file)
    if file.suffix.lower() == ".tar":
        return samples(file, PICTURES, columns.labels[0]), _read_label_names(file)
    if _is_idx(file.name):
        return _idx(file, images), _read_label_names(file)
    raise UserError(f"{file}: unknown format; expected {_FORMS}; extract an archive first")


def find_splits(data: str) -> Splits:
    """Find the training, validation and test images of a directory or of a data set on the Hub.

    A directory of splits contains one file or folder per split, which is identified by its name (`roles.py`). A folder
    of class folders, or a single file, is training data. Raises UserError if a split contains no class folders.
    """
    if data.startswith(HUB) and "#" not in data:
        names = splits_among(Path(), _load(data))
        of = {name: f"{data}#{name}" for name in filter(None, (names.train, names.validation, *names.test))}
        return Splits(of.get(names.train or ""), of.get(names.validation or ""), [of[name] for name in names.test])
    return _splits_of(folder) if (folder := folder_of(data)) else Splits(data, None, [])


def _splits_of(folder: Path) -> Splits:
    folders = folders_in(folder)
    split_names = [path.name for path in split_folders(folders)]
    files = [path.name for path in visible(folder) if not path.is_dir() and _is_corpus(path)]
    if folders and not split_names and splits_among(folder, files, shards=NUMBERED) == (None, None, []):
        return Splits(str(folder), None, [])  # a folder whose subfolders are named after classes
    splits = splits_among(folder, [*files, *split_names], shards=None if split_names else NUMBERED)
    if splits.train is not None and Path(splits.train).is_dir() and not folders_in(Path(splits.train)):
        expected = f"expected {splits.train}/CLASS/IMAGE; if it is a class itself, rename it"
        raise UserError(f"{splits.train}: found no class folders; {expected}")
    return splits.mapped(
        lambda path: str(class_folders_in(Path(path))) if "," not in path and Path(path).is_dir() else path
    )


def _folders(folder: Path) -> Iterator[Sample]:
    if not folders_in(folder):
        raise UserError(f"{folder}: found no class folders; expected {folder}/CLASS/IMAGE")
    for path in visible(folder):
        if path.is_dir():
            yield from _class_folder(path, folder.resolve())
        elif not path.exists():
            yield _broken(path)
        elif path.suffix.lower() in PICTURES:
            yield _faulty(
                _printable(path), "an image outside of the class folders", "move it into a class folder, or remove it"
            )


def _faulty(place: str, fault: str, hint: str) -> Sample:
    return Sample(place, None, fault=ImageFault(fault, hint))


def _class_folder(folder: Path, parent: Path) -> Iterator[Sample]:
    label, real = folder.name, folder.resolve()
    if parent.is_relative_to(real):
        yield _faulty(_printable(folder), f"the link points to a parent folder, {real}", "remove it")
        return
    if _printable(Path(label)) != label:
        yield _faulty(_printable(folder.parent), f"the name of the class folder {label!r} is not UTF-8", "rename it")
        return
    empty = True
    for sample in _files_below(folder, label, [real]):
        yield sample
        empty = False
    if empty:
        yield _faulty(str(folder), "the class folder is empty", "add images, or remove the folder")


def _files_below(folder: Path, label: str, above: list[Path]) -> Iterator[Sample]:
    """Yield a sample for each file in a folder and its subfolders.

    above  resolved paths of the parent folders, in order to detect links that form a cycle
    """
    for path in visible(folder):
        if path.is_dir():
            real = path.resolve()
            if any(place.is_relative_to(real) for place in above):
                yield _faulty(_printable(path), f"the link points to a parent folder, {real}", "remove it")
            else:
                yield from _files_below(path, label, [*above, real])
        elif path.is_file():
            yield Sample(_printable(path), path, label)
        else:
            yield _broken(path)


def _broken(path: Path) -> Sample:
    return _faulty(_printable(path), "a broken link" if path.is_symlink() else "not a regular file", "remove it")


def _printable(path: Path) -> str:
    """Return a path as printable text, even if its bytes are not valid UTF-8."""
    return str(path).encode(errors="backslashreplace").decode()


def _from_cell(place: str, value: object, label: object, folder: Path, images: bool = True) -> Sample:
    """Return the sample for an image in a table cell.

    The cell may contain the bytes of an image file, a path, or {bytes, path} as written by the library `datasets`.
    """
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        return Sample(place, value, label)
    if isinstance(value, str) and value:
        path = folder / value
        try:
            exists = path.is_file()
        # A path of a thousand characters raises OSError; a path with a NUL byte raises ValueError.
        except (OSError, ValueError):
            return _faulty(
                place, f"{value[:40]!r}... is not the path of an image", "write the bytes or the path of an image"
            )
        return (
            Sample(place, path, label) if exists else _faulty(place, f"{path}: no such image file", "correct the path")
        )
    if not images:
        return Sample(place, None, label)
    kind = "empty" if value == "" else type(value).__name__
    return _faulty(place, f"expected an image, found {kind}", "write the bytes or the path of an image")


def _select_columns(columns: Columns, names: Iterable[str]) -> tuple[str] | str:
    """Return the name of the image column of a table in a tuple, or the name of a missing column."""
    image = columns.image or next((name for name in IMAGES if name in names), "image")
    return next((name for name in (image, *columns.labels) if name not in names), "") or (image,)


def _table(file: Path | Rows, columns: Columns, images: bool) -> Iterator[Sample]:
    if isinstance(file, Path) and file.stat().st_size == 0:  # A file without rows is valid.
        return
    form = format_suffix(Path(file))
    column_names = [*columns.labels, *((columns.image,) if columns.image else IMAGES)] if images else columns.labels
    for row in table(file, columns=column_names):
        selected = _select_columns(columns, row.cells) if images or form != ".parquet" else ("",)
        if row.fault:
            yield _faulty(row.place, row.fault, row.hint)
        elif not isinstance(selected, str):
            try:
                label = label_cell(row.cells, columns.label or "label")
            except BadRow as bad:
                yield Sample(row.place, None, fault=bad)
            else:
                yield columns.sample(row, selected[0], label, images=images)
        elif form == ".jsonl":
            yield _faulty(row.place, f"the object has no {selected!r}", 'write {"image": PATH, "label": NAME}')
        else:
            # Read the first row again, because this row contains only the requested columns of a Parquet file.
            raise UserError(_missing_column(file, selected, next(table(file)).cells))


def _missing_column(place: object, column: str, names: Iterable[str]) -> str:
    found = ", ".join(map(repr, names))
    return (
        f"{place}: expected a column {column!r}, found {found}; rename a column, or set columns.image= and "
        "columns.label="
    )


def _shards(
    shards: list[tuple[Iterator[Sample], tuple[str, ...]]], path: str
) -> tuple[Iterator[Sample], tuple[str, ...]]:
    if len({names for _, names in shards}) > 1:
        raise UserError(f"{path}: the labels.txt files of the parts differ; make them identical")
    return chain.from_iterable(found for found, _ in shards), shards[0][1]


def _is_corpus(file: Path) -> bool:
    return is_table(file) or file.suffix.lower() == ".tar" or _is_idx(file.name)


def _is_idx(name: str) -> bool:
    return "images" in name and "idx" in name


def idx_labels_path(file: Path) -> Path:
    """Return the path of the label file that belongs to an image file in the format of MNIST."""
    return file.with_name(file.name.replace("images", "labels").replace("idx3", "idx1"))


def _idx(file: Path, images: bool) -> Iterator[Sample]:
    labels_path = idx_labels_path(file)
    if not labels_path.is_file():
        raise FileNotFoundError(f"{labels_path}: no such file; it should contain the labels of {file.name}")
    labels = _idx_array(labels_path, 1)
    pixels = _idx_array(file, 3) if images else labels
    if len(pixels) != len(labels):
        raise UserError(
            f"{file}: contains {len(pixels):,} images, but {labels_path.name} contains {len(labels):,} labels"
        )
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True), 1):
        yield Sample(f"{file}:{number}", image if images else None, int(label))


def _idx_array(file: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read unsigned bytes from a file in the IDX format of MNIST.

    The file contains 0, 0, the type 8, the number of dimensions, the big-endian sizes, and the data. At most one
    byte beyond the expected size is read, because a small gzip file can expand to gigabytes.
    """
    start = 4 + 4 * dimensions
    try:
        with gzip.open(file) if file.suffix.lower() == ".gz" else open(file, "rb") as data:
            header = data.read(start)
            if len(header) < start or header[:4] != bytes((0, 0, 8, dimensions)):
                raise UserError(f"{file}: not an IDX file of bytes in {dimensions} dimensions; download it again")
            sizes = struct.unpack(f">{dimensions}I", header[4:])
            size_text = f"{' x '.join(f'{size:,}' for size in sizes)} bytes"
            if not 0 < math.prod(sizes) <= _MAX_IDX_BYTES:
                raise UserError(
                    f"{file}: expected 1 to {_MAX_IDX_BYTES:,} bytes, found {size_text} in the header; "
                    "download the file again"
                )
            content = data.read(math.prod(sizes) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{file}: failed to read ({error}); download the file again") from None
    if len(content) != math.prod(sizes):
        found_text = "more" if len(content) > math.prod(sizes) else f"{len(content):,} bytes"
        raise UserError(f"{file}: expected {size_text}, found {found_text}; download the file again")
    return np.frombuffer(content, np.uint8).reshape(sizes)


def _read_label_names(file: Path) -> tuple[str, ...]:
    path = file.with_name("labels.txt")
    if not path.is_file():
        return ()
    lines = lines_of(path)
    for number, line in enumerate(lines, 1):
        if line is None or not line.strip() or line in lines[: number - 1]:
            raise UserError(f"{path}:{number}: expected a unique label name, found {line!r}; write one name per line")
    return tuple(line.strip() for line in lines if line)


def _load(data: str) -> Any:
    """Load a data set from the Hugging Face Hub, or one of its splits."""
    with extra("hub", data):
        import datasets  # type: ignore[import-untyped]
    name, _, split = data.removeprefix(HUB).partition("#")
    name, _, revision = name.partition("@")
    try:
        return datasets.load_dataset(name, split=split or None, revision=revision or None)
    # The library `datasets`, its downloader and the network raise many kinds of exceptions.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{data}: failed to download ({reason}); expected hub:NAME[@REVISION][#SPLIT]") from None


def _hub(data: str, columns: Columns) -> tuple[Iterator[Sample], tuple[str, ...]]:
    rows = _load(data)
    if isinstance(rows, dict):
        raise UserError(f"{data}: select one of the splits {', '.join(rows)}, for example {data}#train")
    selected = _select_columns(columns, rows.features)
    if isinstance(selected, str):
        raise UserError(_missing_column(data, selected, rows.features))
    (image,), (label,) = selected, columns.labels
    if hasattr(rows.features[image], "decode"):
        import datasets

        rows = rows.cast_column(image, datasets.Image(decode=False))
    cells = (_from_cell(f"{data}:{number}", row[image], row[label], Path()) for number, row in enumerate(rows, 1))
    return cells, tuple(getattr(rows.features[label], "names", ()))

"""Adapter that gives data in memory to the readers of table files. Faults are reported with the row number.

The data are a list of dictionaries or tuples, a dictionary or a tuple of columns, an array of rows, a frame of pandas
or Polars, a `datasets.Dataset`, or a PyTorch dataset.
"""

from __future__ import annotations

import io
import logging
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, SupportsIndex, runtime_checkable

import numpy as np
from PIL import Image

from manyheads.data.images.decoding import plain_image
from manyheads.data.readers.roles import is_unlabeled_name, role_of
from manyheads.data.readers.rows import Cells, Row
from manyheads.errors import UserError

if TYPE_CHECKING:
    import pandas

logger = logging.getLogger(__name__)

IN_MEMORY = "data in memory"  # value of the setting `data` of a run on such data


@runtime_checkable
class _PolarsFrame(Protocol):
    def iter_rows(self, *, named: bool) -> Iterable[Mapping[str, object]]: ...


@runtime_checkable
class _PandasFrame(Protocol):
    columns: pandas.Index

    def to_dict(self, orient: str) -> list[dict[str, object]]: ...


@runtime_checkable
class _Array(Protocol):
    """Array or number of NumPy, PyTorch tensor, or column of pandas."""

    ndim: int
    shape: tuple[int, ...]
    dtype: object

    def tolist(self) -> object: ...


@runtime_checkable
class _Column(_Array, Protocol):
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[object]: ...


@runtime_checkable
class _Tensor(Protocol):
    def permute(self, *dims: int) -> _Tensor: ...


@runtime_checkable
class _Indexed(Protocol):
    """List, or data set of the library `datasets` or of PyTorch."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> object: ...


@runtime_checkable
class _Described(Protocol):
    """Data set of the library `datasets`, which describes its columns."""

    features: Mapping[str, object]


@runtime_checkable
class _ListFeature(Protocol):
    feature: object


@runtime_checkable
class _ClassFeature(Protocol):
    names: Sequence[str] | None


class Rows:
    """Rows of a table in memory, which can be iterated more than once.

    Where readers expect a path (`os.fspath`), the object gives the name of its split.

    name    name of the split, such as "train"
    data    the data, in one of the forms that the docstring of this module lists
    fields  lists of column names for rows that are tuples. The list with the same length as the tuple applies
    """

    def __init__(self, name: str, data: object, fields: Sequence[Sequence[str]]) -> None:
        self.name, self._data, self._fields = name, _rows_of(data, name), fields

    def __len__(self) -> int:
        assert isinstance(self._data, _Indexed | _Column)
        return len(self._data)

    def __fspath__(self) -> str:
        return self.name

    __str__ = __fspath__

    def __iter__(self) -> Iterator[Row[Cells]]:
        first: dict[str, tuple[str, int]] = {}  # column name -> (kind of its first value, number of that value's row)
        for number, item in enumerate(_items(self._data, self.name), 1):
            try:
                cells = {name: _plain(value) for name, value in self._named(item).items()}
            except UserError as error:
                raise UserError(f"{self.name}: row {number}: {error}") from None
            for column, value in cells.items():
                if isinstance(value, str | int | float) and not isinstance(value, bool) and value == value:
                    kind = "words" if isinstance(value, str) else "numbers"
                    if first.setdefault(column, (kind, number))[0] != kind:
                        raise UserError(
                            f"{self.name}: row {number}: {column!r} mixes numbers and words: found {value!r}, but "
                            f"{first[column][0]} in row {first[column][1]}; convert the column to one type"
                        )
            yield Row(Path(self.name), number, cells, name=f"row {number}")

    def _named(self, item: object) -> Cells:
        if isinstance(item, Mapping):
            return item
        values = tuple(item) if isinstance(item, tuple | list) else (item,)
        for names in self._fields:
            if len(names) == len(values):
                return dict(zip(names, values, strict=True))
        expected = " or ".join(f"({', '.join(names)})" for names in self._fields)
        found = f"{len(values)} values" if isinstance(item, tuple | list) else type(item).__name__
        raise UserError(f"expected a dictionary or a tuple {expected}, found {found}")


def split_mapping(given: Mapping[str, object]) -> dict[str, object]:
    """Return a mapping of splits with the standard names "train", "validation" and "test".

    The names in `given` are interpreted like file names (`roles.py`): "dev" means validation. A split of unlabeled
    data is left out. If `given` maps column names to columns instead, it is the training data.

    Raises UserError if a name is unknown, if two names mean the same split, or if there are no training data.
    """
    roles = {name: role_of(str(name)) for name, data in given.items() if data is not None}
    if not any(roles.values()) and _columns_of(given):
        return {"train": given}
    if "train" not in roles.values():
        raise UserError(f"train: expected a split 'train', found {', '.join(map(repr, roles)) or 'no data'}")
    splits: dict[str, object] = {}
    for name, role in roles.items():
        if role is None and is_unlabeled_name(str(name)):
            logger.info(f"train: not used: {name!r}")
            continue
        if role is None:
            raise UserError(f"train: unknown split {name!r}; expected train, validation (or val, dev, eval) or test")
        split = "validation" if role == "evaluation" else role
        if role == "evaluation" and "validation" in roles.values():
            split = "test"
        if split in splits:
            names = ", ".join(repr(name) for name in roles)
            raise UserError(f"train: found several {split} splits in {names}; leave all but one out")
        splits[split] = given[name]
    return splits


def _columns_of(data: object) -> list[Sequence[object] | _Column]:
    """Return the columns if the data are a dictionary or tuple of columns, such as (X, y); otherwise an empty list."""
    values = data.values() if isinstance(data, Mapping) else data if isinstance(data, tuple) else ()
    columns = [
        value
        for value in values
        if (isinstance(value, Sequence) and not isinstance(value, str | tuple))
        or (isinstance(value, _Column) and value.ndim > 0)
    ]
    return columns if len(columns) == len(values) else []


def _rows_of(data: object, name: str) -> object:
    """Return the rows of a dictionary of columns, of a tuple of columns such as (X, y), or of an array.

    Other data are returned unchanged. Raises UserError if the columns have different lengths, or may be rows as well.
    """
    if isinstance(data, np.ndarray):
        if data.dtype.names:
            return [dict(zip(data.dtype.names, row, strict=True)) for row in data.tolist()]
        return data.tolist() if data.ndim == 2 else data
    if not (columns := _columns_of(data)):
        return data
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise UserError(f"{name}: the columns have {', '.join(map(str, lengths))} values: expected equal numbers")
    if isinstance(data, Mapping):
        return [dict(zip(data, row, strict=True)) for row in zip(*columns, strict=True)]
    if lengths[0] == len(lengths) and all(isinstance(column, list) for column in columns):
        raise UserError(
            f"{name}: found {lengths[0]} lists of {lengths[0]} values, rows or columns; give a list of tuples"
        )
    return list(zip(*columns, strict=True))


def _items(data: object, name: str) -> Iterable[object]:
    if isinstance(data, _PolarsFrame):
        return data.iter_rows(named=True)
    if isinstance(data, _PandasFrame):
        if not data.columns.is_unique:
            repeated = ", ".join(map(repr, data.columns[data.columns.duplicated()]))
            raise UserError(f"{name}: found several columns {repeated}; rename the columns")
        return data.to_dict("records")
    if isinstance(data, str | Mapping) or not isinstance(data, _Indexed):
        raise UserError(
            f"{name} is a {type(data).__name__}: expected a list, a frame or a dataset with a length, because training "
            "reads the data more than once"
        )
    features = data.features if isinstance(data, _Described) else None
    named = {column: names for column, feature in (features or {}).items() if (names := _class_names(feature))}
    rows = (data[i] for i in range(len(data)))
    if not named:
        return rows
    return ({c: _label(v, named.get(c)) for c, v in row.items()} if isinstance(row, Mapping) else row for row in rows)


def _class_names(feature: object) -> Sequence[str] | None:
    """Return the label names of a column in a data set of the library `datasets`; None if it contains no labels."""
    inner = feature.feature if isinstance(feature, _ListFeature) else feature
    return inner.names if isinstance(inner, _ClassFeature) else None


def _label(value: object, names: Sequence[str] | None) -> object:
    """Replace a label index, or a list of label indices, by label names. Return other values unchanged."""
    if names and isinstance(value, list):
        return [_label(item, names) for item in value]
    # The index may also be a number of NumPy or PyTorch, depending on the format of the data set.
    if not names or not isinstance(value, SupportsIndex):
        return value
    index = operator.index(value)
    return names[index] if 0 <= index < len(names) else value


def _plain(value: object) -> object:
    """Convert a NumPy or PyTorch value to a Python value, and an image to the bytes of a PNG file."""
    if isinstance(value, Image.Image):
        return _png(plain_image(value))
    if isinstance(value, list | tuple | set | frozenset):
        return [*map(_plain, value)]
    if not isinstance(value, _Array):
        return str(value) if isinstance(value, Path) else value
    if value.ndim < 2:
        return value.tolist()
    pixels = np.asarray(value)
    if isinstance(value, _Tensor):  # An image in a PyTorch tensor has the shape (C, Y, X).
        pixels = pixels.transpose(1, 2, 0) if pixels.ndim == 3 else pixels
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    if pixels.ndim > 3 or channels > 4 or not pixels.size or pixels.dtype.kind not in "buif":
        shape = " x ".join(map(str, value.shape))
        raise UserError(
            f"expected an image, found {shape} values of type {value.dtype}; give 1 to 4 channels, as (height, width, "
            "channels) in an array and as (channels, height, width) in a tensor"
        )
    if pixels.dtype != np.uint8:
        if not (pixels.min() >= 0 and pixels.max() <= 1):
            raise UserError("expected pixels as integers from 0 to 255 or numbers from 0 to 1; leave out normalization")
        pixels = np.round(pixels * 255).astype(np.uint8)
    return _png(Image.fromarray(pixels.squeeze(-1) if pixels.shape[-1] == 1 else pixels))


def _png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, format="png", compress_level=1)
    return file.getvalue()

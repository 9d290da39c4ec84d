"""Reader of images in tar files in the WebDataset format.

Consecutive files with the same name up to the first dot form one sample, an image and its label:

    a/0001.jpg   a/0001.cls    the label is a number or a name, as text
    a/0002.png   a/0002.json   a JSON object with the key `label`, or another configured column name

Nothing is extracted. The headers are read sequentially, and each image is read from its offset when it is needed.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from manyheads.data.images.decoding import ImageFault
from manyheads.data.readers.roles import is_hidden
from manyheads.data.readers.rows import BadRow
from manyheads.errors import UserError

_MAX_LABEL_BYTES = {"cls": 2**12, "json": 2**20}  # maximum size of a label file in bytes
_MAX_IMAGE_BYTES = 2**30  # maximum size of an image file in bytes
_REGULAR_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE)  # Only regular files are read: no links, devices or sparse files.


class Member(NamedTuple):
    """Location of a file inside a tar file: the path of the tar file, an offset and a size."""

    tar: Path
    start: int
    size: int

    def read(self) -> bytes:
        """Read the bytes of the file. Raises OSError, or ImageFault if the tar file has changed."""
        with self.tar.open("rb") as file:
            file.seek(self.start)
            content = file.read(self.size)
        if len(content) != self.size:
            raise ImageFault(f"{self.tar} has become shorter since it was read", "do not change it during a run")
        return content


class Sample(NamedTuple):
    """Image of a corpus, not decoded, with its label. If the image cannot be used, the sample contains the fault."""

    place: str  # location of the image, for error messages
    # bytes of an encoded image, path of its file, or its pixels (Y, X)
    source: bytes | Path | Member | NDArray[np.uint8] | None = None
    label: object = None
    fault: BadRow | None = None
    number: int = 0  # line number of the image in a table; 0: the image is not in a table


class _File(NamedTuple):
    key: str
    kind: str  # part of the file name after the first dot, in lower case
    member: Member
    fault: ImageFault | None


def samples(tar: Path, pictures: tuple[str, ...], label: str) -> Iterator[Sample]:
    """Yield the samples of a tar file in the order of the file.

    pictures  file suffixes of images, with the dot
    label     key of the label in a .json file

    Raises UserError if the file is not a tar file, or is damaged.
    """
    for key, group in groupby(_files(tar), lambda file: file.key):
        files = list(group)
        try:
            yield _sample(f"{tar}:{key}", files, pictures, label)
        except ImageFault as fault:
            yield Sample(f"{tar}:{key}", fault=fault)


def _sample(place: str, files: list[_File], pictures: tuple[str, ...], label: str) -> Sample:
    for file in files:
        if file.fault:
            raise file.fault
    if len({file.kind for file in files}) < len(files):
        raise ImageFault("two files with the same name", "rename or remove one")
    images = [file.member for file in files if f".{file.kind.rpartition('.')[2]}" in pictures]
    labels = {file.kind: file.member for file in files if file.kind in _MAX_LABEL_BYTES}
    if len(images) != 1:
        raise ImageFault(
            f"expected one image with this name, found {len(images) or 'none'}",
            "store one image and its label under the same name",
        )
    if images[0].size > _MAX_IMAGE_BYTES:
        raise ImageFault(
            f"expected an image of at most {_MAX_IMAGE_BYTES:,} bytes, found {images[0].size:,}",
            "reduce the size of the image",
        )
    if not labels:
        raise ImageFault("no label", "add a .cls or .json file with the name of the image")
    return Sample(place, images[0], _label(labels, label))


def _label(labels: dict[str, Member], name: str) -> object:
    kind = "cls" if "cls" in labels else "json"
    if labels[kind].size > _MAX_LABEL_BYTES[kind]:
        raise ImageFault(f"expected a .{kind} file of at most {_MAX_LABEL_BYTES[kind]:,} bytes", "write only the label")
    content = labels[kind].read()
    try:
        if kind == "cls":
            return content.decode().strip()
        cells = json.loads(content)
    except (ValueError, RecursionError):
        raise ImageFault(f"unreadable .{kind} file", "write it again as UTF-8") from None
    if not isinstance(cells, dict) or name not in cells:
        raise ImageFault(f"the .json file has no key {name!r}", "set the key of the label with columns.label=")
    return cells[name]


def _files(tar: Path) -> Iterator[_File]:
    """Yield all files of a tar file except hidden files; folders are not files.

    Offsets in headers are checked against the size of the tar file.
    """
    size, at = tar.stat().st_size, -1  # offset of the next header in the tar file
    try:
        with tarfile.open(tar, "r:") as opened:
            while (info := opened.next()) is not None:
                opened.members.clear()  # type: ignore[attr-defined]  # tarfile would keep all headers in memory
                if not at < opened.offset <= size:
                    raise tarfile.ReadError(f"{info.size:,} bytes at byte {info.offset_data:,} of {size:,}")
                at = opened.offset
                if file := _file(tar, info):
                    yield file
            at = opened.offset
        with tar.open("rb") as content:
            content.seek(at)
            block = content.read(tarfile.BLOCKSIZE)
        if len(block) < tarfile.BLOCKSIZE or any(block):
            raise tarfile.ReadError(f"found neither a header nor the end of the archive at byte {at:,}")
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{tar}: not a tar file, or damaged ({reason}); decompress it if it is compressed, or write it again"
        ) from None


def _file(tar: Path, info: tarfile.TarInfo) -> _File | None:
    name = info.name.encode(errors="backslashreplace").decode()
    folder, slash, base = name.rpartition("/")
    if info.isdir() or is_hidden(base):
        return None
    stem, _, kind = base.partition(".")
    fault = None
    if info.type not in _REGULAR_TYPES or info.sparse is not None:
        file_kind = "a link" if info.islnk() or info.issym() else "not a regular file"
        fault = ImageFault(f"{file_kind} in a tar file", "store the file itself")
    elif name.startswith("/") or ".." in folder.split("/"):
        fault = ImageFault("the path points outside of the archive", "use a relative name")
    return _File(folder + slash + stem, kind.lower(), Member(tar, info.offset_data, info.size), fault)

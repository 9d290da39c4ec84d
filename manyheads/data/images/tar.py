"""Images in tar files, as WebDataset lays them out: files that stand together and are called alike up to the first dot
are one item, an image and its label.

    a/0001.jpg   a/0001.cls    a number or a name, as text
    a/0002.png   a/0002.json   an object with a key `label`, or as the column of labels is called

Nothing is extracted. The headers are read one after the other, an image from its place in the file when it is needed.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from manyheads.data.images.decoding import ImageFault
from manyheads.errors import UserError

_MOST = {"cls": 2**12, "json": 2**20}  # bytes of a label's file
_LARGEST = 2**30  # bytes of an image's file
_KEPT = (tarfile.REGTYPE, tarfile.AREGTYPE)  # no links, no devices, no sparse files


class Member(NamedTuple):
    """Where a file lies in a tar."""

    tar: Path
    start: int
    size: int

    def read(self) -> bytes:
        """Raises OSError, and ImageFault where the tar has changed."""
        with self.tar.open("rb") as file:
            file.seek(self.start)
            content = file.read(self.size)
        if len(content) != self.size:
            raise ImageFault(f"{self.tar} has become shorter since it was read", "leave it as it is during a run")
        return content


class Sample(NamedTuple):
    """An item of a tar, or why it cannot be used."""

    key: str
    image: Member | None = None
    label: object = None
    fault: ImageFault | None = None


class _File(NamedTuple):
    key: str
    kind: str  # what follows the first dot of its name, in small letters
    member: Member
    fault: ImageFault | None


def samples(tar: Path, pictures: tuple[str, ...], label: str) -> Iterator[Sample]:
    """The items of a tar in their order.

    pictures  how the names of images end, with the dot
    label     the key of a .json that holds the label

    Raises UserError for a file that is no tar, or a damaged one.
    """
    for key, group in groupby(_files(tar), lambda file: file.key):
        files = list(group)
        try:
            yield _sample(key, files, pictures, label)
        except ImageFault as fault:
            yield Sample(key, fault=fault)


def _sample(key: str, files: list[_File], pictures: tuple[str, ...], label: str) -> Sample:
    for file in files:
        if file.fault:
            raise file.fault
    if len({file.kind for file in files}) < len(files):
        raise ImageFault("a file of the same name twice", "rename or remove one")
    images = [file.member for file in files if f".{file.kind.rpartition('.')[2]}" in pictures]
    labels = {file.kind: file.member for file in files if file.kind in _MOST}
    if len(images) != 1:
        raise ImageFault(
            f"{len(images) or 'no'} image{'s' * (len(images) > 1)} of this name", "store one beside its label"
        )
    if images[0].size > _LARGEST:
        raise ImageFault(f"an image of more than {_LARGEST:,} bytes: {images[0].size:,}", "make it smaller")
    if not labels:
        raise ImageFault("no label", "store .cls or .json of the same name beside the image")
    return Sample(key, images[0], _label(labels, label))


def _label(labels: dict[str, Member], name: str) -> object:
    kind = "cls" if "cls" in labels else "json"
    if labels[kind].size > _MOST[kind]:
        raise ImageFault(f"a .{kind} of more than {_MOST[kind]:,} bytes", "write the label alone")
    content = labels[kind].read()
    try:
        if kind == "cls":
            return content.decode().strip()
        cells = json.loads(content)
    except (ValueError, RecursionError):
        raise ImageFault(f"a .{kind} that cannot be read", "write it again, as UTF-8") from None
    if not isinstance(cells, dict) or name not in cells:
        raise ImageFault(f"no {name!r} in the .json", "name the key of the label: columns.label=")
    return cells[name]


def _files(tar: Path) -> Iterator[_File]:
    """All but folders and hidden files. What is known of a header is checked against the file's size."""
    size, at = tar.stat().st_size, -1  # where the next header begins
    try:
        with tarfile.open(tar, "r:") as opened:
            while (info := opened.next()) is not None:
                opened.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all
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
            raise tarfile.ReadError(f"no header and no end at byte {at:,}")
    except (tarfile.TarError, OSError, EOFError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{tar}: not a tar file, or damaged ({reason}); expand a compressed one, or write it again"
        ) from None


def _file(tar: Path, info: tarfile.TarInfo) -> _File | None:
    name = info.name.encode(errors="backslashreplace").decode()
    folder, slash, base = name.rpartition("/")
    if info.isdir() or base.startswith("."):
        return None
    stem, _, kind = base.partition(".")
    fault = None
    if info.type not in _KEPT or info.sparse is not None:
        kept = "a link" if info.islnk() or info.issym() else "no regular file"
        fault = ImageFault(f"{kept} in a tar", "store the file itself")
    elif name.startswith("/") or ".." in folder.split("/"):
        fault = ImageFault("a name that leads out of the tar", "store it under a relative name")
    return _File(folder + slash + stem, kind.lower(), Member(tar, info.offset_data, info.size), fault)

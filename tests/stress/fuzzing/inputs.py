"""Fuzzing input: small named files, as one byte string for the engine and as a folder for the code under test."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

Files = Mapping[str, bytes]
LINK = b"@link:"  # begins the content of what is to be a symbolic link
_NAME, _SIZE = 2, 4  # bytes of their lengths


def packed(files: Files) -> bytes:
    parts = []
    for name, content in files.items():
        encoded = name.encode(errors="surrogateescape")
        parts += [len(encoded).to_bytes(_NAME), encoded, len(content).to_bytes(_SIZE), content]
    return b"".join(parts)


def unpacked(data: bytes) -> dict[str, bytes]:
    """Unpack files from arbitrary bytes; the last file may be truncated."""
    files, at = {}, 0
    while at < len(data):
        end = at + _NAME + int.from_bytes(data[at : at + _NAME])
        name = data[at + _NAME : end].decode(errors="surrogateescape")
        at = end + _SIZE + int.from_bytes(data[end : end + _SIZE])
        if name:
            files[name] = data[end + _SIZE : at]
    return files


def write(folder: Path, files: Files) -> None:
    """Write the files into the emptied folder only. Files with impossible names are skipped."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        path = folder / name
        if (
            "\0" in name
            or ".." in path.parts
            or path.is_absolute() != folder.is_absolute()
            or folder not in path.parents
        ):
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if content.startswith(LINK):
                path.symlink_to(content.removeprefix(LINK).decode(errors="surrogateescape") or "nowhere")
            else:
                path.write_bytes(content)
        except (OSError, ValueError):  # the name of a folder, or longer than names may be
            continue


def read(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder and its subfolders, as an example."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}

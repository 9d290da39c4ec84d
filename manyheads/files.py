"""Files that are written whole or not at all, JSON, and fingerprints: what every room needs of the disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from manyheads.errors import UserError

DEEPEST = 100  # brackets in brackets of JSON
_TOO_DEEP = f"nested more than {DEEPEST} deep"
LEFTOVER = ".tmp-"  # how the name of a file begins that is not complete yet, or that a kill -9 has left behind


class WriteError(UserError):
    """A file could not be written; the message says whether what was there is intact."""


@contextmanager
def replacing_all(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Temporary paths, empty files beside `paths` with the same endings, for the body of the `with` to write.

    Then all are synced to the disk and renamed in their order: a crash leaves the old files or the new ones. Where the
    body raises, the old ones stay; an OSError of it becomes a WriteError that names the file, or the directory of
    several.
    """
    targets = [Path(os.path.realpath(path)) for path in paths]  # what a link points to is replaced, not the link
    temporaries = [target.with_name(f"{LEFTOVER}{secrets.token_hex(4)}-{target.name}") for target in targets]
    replaced: list[Path] = []
    try:
        for temporary in temporaries:
            temporary.touch(exist_ok=False)
        modes = [temporary.stat().st_mode for temporary in temporaries]  # what the umask gives; some libraries set 0600
        yield temporaries
        for temporary, mode in zip(temporaries, modes, strict=True):
            temporary.chmod(mode)
            _sync(temporary)
        for target in targets:
            if target.is_dir():  # before the first one is replaced
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        for temporary, target in zip(temporaries, targets, strict=True):
            os.replace(temporary, target)
            replaced.append(target)
        for directory in {target.parent for target in targets}:
            _sync_directory(directory)  # the rename itself must reach the disk
    except OSError as error:
        place = paths[0] if len(paths) == 1 else paths[0].parent
        left = f"{len(replaced)} of {len(targets)} files are new" if replaced else "what was there is intact"
        raise WriteError(f"{place}: cannot write: {error.strerror or error}; {left}") from error
    finally:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)  # after a rename there is none


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that takes the place of `path` when the body has written it: see `replacing_all`. What is no
    regular file, such as /dev/stdout, is `path` itself."""
    if path.exists() and not path.is_file():
        yield path
    else:
        with replacing_all([path]) as (temporary,):
            yield temporary


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(path: Path) -> None:
    try:
        _sync(path)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # of file systems that sync no directory
            raise


def write(path: Path, content: str | bytes) -> None:
    """Replace a file; text is written as UTF-8."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, value: Any) -> None:
    write(path, json.dumps(value, indent=1) + "\n")


def regular(file: Path) -> Path:
    """The file itself, if it is one or is missing. Raises UserError for a pipe or a device, which need never end."""
    if file.exists() and not file.is_file():
        raise UserError(f"{file}: expected a file, got a {'directory' if file.is_dir() else 'pipe or device'}")
    return file


def read_json(path: Path, hint: str) -> Any:
    """The value in a JSON file. Raises a UserError that names the file and ends with `hint` where it is damaged."""
    regular(path)
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:  # no JSON, or no UTF-8
        raise UserError(f"{path}: invalid JSON ({error}): {hint}") from error


def parse_json(text: str | bytes) -> Any:
    """The value that JSON says. Raises UserError, also for brackets in brackets without an end: what is nested more
    deeply than Python's stack allows could be read, and then not be printed."""
    brackets = text.count(b"[") + text.count(b"{") if isinstance(text, bytes) else text.count("[") + text.count("{")
    try:
        value = json.loads(text)
    except RecursionError:
        raise UserError(_TOO_DEEP) from None
    if brackets > DEEPEST:
        level = [value]
        for _ in range(DEEPEST):
            inside = (part for part in level if isinstance(part, dict | list))
            level = [item for part in inside for item in (part.values() if isinstance(part, dict) else part)]
        if level:
            raise UserError(_TOO_DEEP)
    return value


def fingerprint(parts: Iterable[str | bytes | Path]) -> str:
    """32 hexadecimal digits that depend on the parts and their boundaries; a Path stands for that file's content."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()

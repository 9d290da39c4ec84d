"""Atomic file writes, JSON with limits, and fingerprints."""

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

DEEPEST = 100  # maximum nesting of brackets in JSON
_TOO_DEEP = f"nested more than {DEEPEST} deep"
LEFTOVER = ".tmp-"  # prefix of a temporary file, which is incomplete or was left by a killed process


class WriteError(UserError):
    """Failure to write a file. The message says whether the previous content is intact."""


@contextmanager
def replacing_all(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Yield temporary paths with the same suffixes as `paths`, for the body of the `with` block to write.

    Afterwards, sync all files to disk and rename them in order, so that a crash leaves the old or the new files. If the
    body raises, the old files stay. An OSError becomes a WriteError that names the file, or the common directory.
    """
    targets = [Path(os.path.realpath(path)) for path in paths]  # replace the target of a link, not the link itself
    temporaries = [target.with_name(f"{LEFTOVER}{secrets.token_hex(4)}-{target.name}") for target in targets]
    replaced: list[Path] = []
    try:
        for temporary in temporaries:
            temporary.touch(exist_ok=False)
        # permissions by the umask; some libraries create files with 0600
        modes = [temporary.stat().st_mode for temporary in temporaries]
        yield temporaries
        for temporary, mode in zip(temporaries, modes, strict=True):
            temporary.chmod(mode)
            _sync(temporary)
        for target in targets:
            if target.is_dir():  # check before the first file is replaced
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        for temporary, target in zip(temporaries, targets, strict=True):
            os.replace(temporary, target)
            replaced.append(target)
        for directory in {target.parent for target in targets}:
            _sync_directory(directory)  # sync the rename itself
    except OSError as error:
        place = paths[0] if len(paths) == 1 else paths[0].parent
        left = f"{len(replaced)} of {len(targets)} files are new" if replaced else "the previous content is intact"
        raise WriteError(f"{place}: cannot write: {error.strerror or error}; {left}") from error
    finally:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)  # already renamed, unless the body failed


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` after the body has written it; see `replacing_all`.

    If `path` exists and is not a regular file, such as /dev/stdout, yield `path` itself.
    """
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
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems without fsync for directories
            raise


def write(path: Path, content: str | bytes) -> None:
    """Replace a file with `content`. Text is written as UTF-8."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, value: Any) -> None:
    write(path, json.dumps(value, indent=1) + "\n")


def regular(file: Path) -> Path:
    """Return the path of a regular or missing file. Raise UserError for a pipe or device, which may never end."""
    if file.exists() and not file.is_file():
        raise UserError(f"{file}: expected a file, found a {'directory' if file.is_dir() else 'pipe or device'}")
    return file


def read_json(path: Path, hint: str) -> Any:
    """Return the value in a JSON file. Raise UserError with the file's name and `hint` if the file is damaged."""
    regular(path)
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:  # neither valid JSON nor valid UTF-8
        raise UserError(f"{path}: invalid JSON ({error}): {hint}") from error


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Raise UserError if brackets are nested more than 100 deep.

    Python can parse values that are nested more deeply than it can print.
    """
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
    """Return 32 hexadecimal digits that depend on all parts and their boundaries.

    A Path stands for the file's content.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()

"""Atomic file writes, reading of JSON with a nesting limit, and fingerprints of data."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from manyheads.errors import UserError

PICTURES = (".png", ".svg", ".pdf")  # suffixes of the picture formats that the package writes with matplotlib
DEEPEST = 100  # maximum depth of nested brackets in a JSON file
JsonObject: TypeAlias = dict[str, Any]  # content of a JSON object, such as a configuration or a record
JsonMapping: TypeAlias = Mapping[str, Any]  # content of a JSON object that must not be changed
_TOO_DEEP = f"nested more than {DEEPEST} deep"
# Prefix of temporary file names. Such a file is still being written, or was left behind by a killed process.
LEFTOVER = ".tmp-"


class WriteError(UserError):
    """Error while writing a file. The message says whether the previous content of the file is intact."""


@contextmanager
def replacing_all(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Context manager that replaces several files atomically. It yields temporary paths with the suffixes of `paths`.

    The `with` block writes to the temporary paths. Afterwards, all files are synced to disk and renamed in order,
    so that a crash leaves either the old or the new files. If the block raises an exception, the old files remain.
    An OSError becomes a WriteError that names the file, or the common directory.
    """
    # If the path is a symbolic link, replace the file that it points to, not the link.
    targets = [Path(os.path.realpath(path)) for path in paths]
    temporaries = [target.with_name(f"{LEFTOVER}{secrets.token_hex(4)}-{target.name}") for target in targets]
    replaced: list[Path] = []
    try:
        for temporary in temporaries:
            temporary.touch(exist_ok=False)
        # Set the permissions that the umask allows, because some libraries create files with mode 0600.
        modes = [temporary.stat().st_mode for temporary in temporaries]
        yield temporaries
        for temporary, mode in zip(temporaries, modes, strict=True):
            temporary.chmod(mode)
            _sync(temporary)
        for target in targets:
            if target.is_dir():  # Check that no target is a directory before the first file is replaced.
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        for temporary, target in zip(temporaries, targets, strict=True):
            os.replace(temporary, target)
            replaced.append(target)
        for directory in {target.parent for target in targets}:
            _sync_directory(directory)  # sync the directory, so that the rename survives a crash
    except OSError as error:
        place = paths[0] if len(paths) == 1 else paths[0].parent
        left = f"{len(replaced)} of {len(targets)} files are new" if replaced else "the previous content is intact"
        raise WriteError(f"{place}: cannot write: {error.strerror or error}; {left}") from error
    finally:
        for temporary in temporaries:
            # After a successful write, the temporary files no longer exist because they were renamed.
            temporary.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Context manager for one file: yield a temporary path, which replaces `path` at the end; see `replacing_all`.

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
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems do not support fsync for directories
            raise


def write(path: Path, content: str | bytes) -> None:
    """Replace a file atomically with `content`. Text is written as UTF-8."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, value: Any) -> None:
    write(path, json.dumps(value, indent=1) + "\n")


def same_file(one: Path, other: str | Path) -> bool:
    """Return True if both paths lead to the same existing file. A text that cannot be a path leads to none."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


def check_free(out: Path) -> None:
    """Raise UserError if `out` exists and is not an empty directory."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists and is not empty: expected a new directory")


def regular(file: Path) -> Path:
    """Return the path of a file that is a regular file or does not exist.

    Raises UserError for a directory, and for a pipe or device, because reading it may never end.
    """
    if file.exists() and not file.is_file():
        raise UserError(f"{file}: expected a file, found a {'directory' if file.is_dir() else 'pipe or device'}")
    return file


def read_json(path: Path, hint: str) -> Any:
    """Read a JSON file and return its value. If the file is damaged, raise UserError with its name and `hint`."""
    regular(path)
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:  # the file is not valid JSON, or not valid UTF-8
        raise UserError(f"{path}: invalid JSON ({error}): {hint}") from error


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Parse JSON text. Raise UserError if brackets are nested more than `DEEPEST` deep.

    Without this limit, Python could parse deeply nested values that it cannot print.

    options  options of `json.loads`
    """
    brackets = text.count(b"[") + text.count(b"{") if isinstance(text, bytes) else text.count("[") + text.count("{")
    try:
        value = json.loads(text, **options)
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
    """Return a fingerprint of the given parts as 32 hexadecimal digits.

    The fingerprint depends on the content of every part and on the boundaries between parts. A part that is a Path
    stands for the content of the file.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()

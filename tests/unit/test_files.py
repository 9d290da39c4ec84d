"""Atomic replacement of files, and errors that name the file."""

import os
from pathlib import Path

import pytest

from manyheads.files import (
    DEEPEST,
    WriteError,
    fingerprint,
    parse_json,
    read_json,
    replacing,
    replacing_all,
    write,
    write_json,
)  # fmt: skip


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)


def test_a_failed_write_keeps_the_old_file_and_names_it(tmp_path: Path, full_disk: None) -> None:
    file = tmp_path / "page.html"
    file.write_text("old")
    with pytest.raises(
        WriteError, match=r"page\.html: cannot write: No space left on device; the previous content is intac"
    ):
        write(file, "new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_an_error_in_the_body_keeps_the_old_file(tmp_path: Path) -> None:
    write(tmp_path / "a", "old")

    def interrupted() -> None:
        with replacing(tmp_path / "a") as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_several_files_are_replaced_only_when_all_are_written(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        write(path, "old")

    def fails() -> None:
        with replacing_all(paths) as temporaries:
            temporaries[0].write_text("new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert [path.read_text() for path in paths] == ["old", "old"]
    with replacing_all(paths) as temporaries:
        for temporary in temporaries:
            temporary.write_text("new")
    assert [path.read_text() for path in paths] == ["new", "new"]


def test_a_directory_with_the_name_of_a_file_changes_no_file(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "ab"]
    write(paths[0], "old")
    paths[1].mkdir()
    with pytest.raises(WriteError, match="Is a directory; the previous content is intact"), replacing_all(paths):
        pass
    assert paths[0].read_text() == "old"


def test_a_failure_after_a_rename_is_reported_as_partial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, replace = [tmp_path / name for name in "ab"], os.replace

    def one(source: Path, target: Path) -> None:
        if target.name == "b":
            raise OSError(5, "Input/output error")
        replace(source, target)

    monkeypatch.setattr("os.replace", one)
    with pytest.raises(WriteError, match="Input/output error; 1 of 2 files are new"), replacing_all(paths):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640)])
def test_the_umask_decides_file_modes(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        with replacing(tmp_path / "a") as temporary:
            temporary.write_text("x")
            temporary.chmod(0o600)  # as safetensors does
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == mode


def test_links_and_devices_are_kept_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"
    write(Path(os.devnull), "text")
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize("content", [b"{", b"\xff{}", b"[" * 100_000])
def test_damaged_json_is_reported_with_its_file(tmp_path: Path, content: bytes) -> None:
    write(tmp_path / "a.json", content)
    with pytest.raises(ValueError, match=r"a\.json: invalid JSON \(.*\): copy it again"):
        read_json(tmp_path / "a.json", "copy it again")
    write_json(tmp_path / "a.json", {"a": [1, None]})
    assert read_json(tmp_path / "a.json", "") == {"a": [1, None]}


def test_a_fingerprint_depends_on_parts_boundaries_and_files(tmp_path: Path) -> None:
    write(tmp_path / "a", "one")
    assert fingerprint(["ab", "c"]) != fingerprint(["a", "bc"])
    assert fingerprint([tmp_path / "a"]) == fingerprint(["one"]) == fingerprint([b"one"])


def test_endless_nesting_is_refused(tmp_path: Path) -> None:
    for depth in (DEEPEST + 1, 980, 100_000):  # some is read by the standard library, and then has no repr
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            with pytest.raises(ValueError, match="nested more than 100 deep"):
                parse_json(opening * depth + "1" + closing * depth)
    assert parse_json(b"[" * DEEPEST + b"]" * DEEPEST) is not None
    assert len(parse_json("[[]" + ",[]" * 500 + "]")) == 501  # many, but none inside the other
    (tmp_path / "a.json").write_text("[" * 1000)
    with pytest.raises(ValueError, match=r"a\.json: invalid JSON .*: remedy"):
        read_json(tmp_path / "a.json", "remedy")

"""Token cache: same ids as the tokenizer, never stale, never incomplete."""

import os
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from manyheads.data.text.store import TokenStore, TokenStream
from manyheads.data.text.tokenizers import encode_all, train_bpe

TEXTS = [f"Satz {i} über {'Hunde ' * (i % 5)}" for i in range(200)] + [""]
TOKENIZER = train_bpe(TEXTS, 39)


def test_ids_and_lengths_equal_the_tokenizers(tmp_path: Path) -> None:
    store = TokenStore.of(TEXTS, TOKENIZER, tmp_path)
    expected = encode_all(TOKENIZER, TEXTS)
    assert [list(ids) for ids in store] == expected
    assert list(store.lengths) == [len(ids) for ids in expected]
    assert len(store) == len(TEXTS)
    assert store[-1].dtype == np.int64
    assert "uint16 ids" in repr(store)
    with pytest.raises(IndexError):
        store[len(TEXTS)]
    assert len(TokenStore.of([], TOKENIZER, tmp_path)) == 0


def test_a_stored_corpus_opens_without_tokenizing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = TokenStore.of(TEXTS, TOKENIZER, tmp_path)
    monkeypatch.setattr("manyheads.data.text.store.encode_all", lambda *_: pytest.fail("tokenized again"))
    second = TokenStore.of(TEXTS, TOKENIZER, tmp_path)
    assert first.path == second.path
    assert [list(a) for a in first] == [list(b) for b in second]
    assert [p.suffix for p in tmp_path.iterdir()] == [".tokens"]


def test_another_text_or_tokenizer_has_another_file(tmp_path: Path) -> None:
    paths = {TokenStore.of(t, TOKENIZER, tmp_path).path for t in (TEXTS, TEXTS[:-1], TEXTS[::-1], [*TEXTS, ""])}
    paths.add(TokenStore.of(TEXTS, train_bpe(TEXTS, 36), tmp_path).path)
    assert len(paths) == 5


@pytest.mark.parametrize("keep", [0, 4, 100, -1, "more"])
def test_a_damaged_store_is_rebuilt_with_a_warning(tmp_path: Path, keep: int | str) -> None:
    path = TokenStore.of(TEXTS, TOKENIZER, tmp_path).path
    data = path.read_bytes()
    path.write_bytes(data + b"x" if isinstance(keep, str) else data[:keep])
    with pytest.raises(ValueError, match=r"\.tokens: .*delete the file"):
        TokenStore(path)
    with pytest.warns(UserWarning, match="rebuilding it now"):
        store = TokenStore.of(TEXTS, TOKENIZER, tmp_path)
    assert [list(ids) for ids in store] == encode_all(TOKENIZER, TEXTS)
    assert path.read_bytes() == data


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ValueError, match="No space left"):
        TokenStore.of(TEXTS, TOKENIZER, tmp_path)
    assert not list(tmp_path.iterdir())


def test_ids_with_gaps_keep_their_values(tmp_path: Path) -> None:
    vocabulary = {"[UNK]": 0, "far": 2**16 + 5}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    assert list(TokenStore.of(["far"], tokenizer, tmp_path)[0]) == [2**16 + 5]


def test_a_store_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        store = TokenStore.of(TEXTS, TOKENIZER, tmp_path)
    finally:
        os.umask(before)
    assert store.path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("shape", ["(10000000000000,)", "(-1,)", "()", "(1, 3)", "(3", "(3.0,)"])
def test_sizes_from_a_header_are_not_allocated(tmp_path: Path, shape: str) -> None:
    for kind in ("<i8", "|O"):
        header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
        (tmp_path / "a").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(24))
        with pytest.raises(ValueError, match="not a token file .*; delete the file, and it will be rebuilt"):
            TokenStore(tmp_path / "a")
        with pytest.raises(ValueError, match="not a token file .*; delete the file, and it will be rebuilt"):
            TokenStream(tmp_path / "a")


def test_offsets_stay_within_the_store(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        np.save(file, np.array([0, 5, 2, 3], np.int64))
        np.save(file, np.arange(3, dtype=np.uint16))
    with pytest.raises(ValueError, match="delete the file, and it will be rebuilt"):
        TokenStore(tmp_path / "a")

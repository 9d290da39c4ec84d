"""Vocabulary layout, round trips, determinism."""

import random
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from manyheads.data.text.tokenizers import encode_all, load_tokenizer, train_bpe
from tests.paths import ROOT

WORDS = [
    "Der",
    "dog",
    "läuft,",
    "RUNS!",
    "über",
    "straße's",
    "12,345.6",
    "km",
    "(A–B)",
    "„ja“",
    "10",
    "%",
    "Übersetzung",
]
TEXTS = [" ".join(random.Random(i).choices(WORDS, k=9)) for i in range(300)]


def test_a_saved_layout_reloads(tmp_path: Path) -> None:
    tokenizer = train_bpe(TEXTS, 80)
    size = tokenizer.get_vocab_size()
    assert size == 80
    assert [tokenizer.token_to_id(t) for t in ("</s>", "<unk>", "<pad>")] == [0, 1, size - 1]
    assert all(ids[-1] == 0 and 1 not in ids and size - 1 not in ids for ids in encode_all(tokenizer, TEXTS))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert again.to_str() == tokenizer.to_str()
    odd = "a </s> <pad> 😀"
    assert encode_all(again, [*TEXTS, odd]) == encode_all(tokenizer, [*TEXTS, odd])


def test_special_tokens_in_text_are_text() -> None:
    tokenizer = train_bpe([*TEXTS, "< / > s p a d"], 90)
    ids = tokenizer.encode("a </s> b <pad>").ids
    assert ids.count(0) == 1
    assert 89 not in ids
    assert tokenizer.decode(ids) == "a </s> b <pad>"


def test_unknown_characters_become_one_unk_and_digits_are_separate() -> None:
    tokenizer = train_bpe(TEXTS, 90)
    assert tokenizer.encode("😀😀").ids.count(1) == 2
    assert [t for t in tokenizer.encode("12345").tokens if t.isdigit()] == list("12345")


def test_round_trip() -> None:
    tokenizer = train_bpe([*TEXTS, "e\u0301 a\u00a0b\u202fc"], 70)
    texts = [*TEXTS, "  a   b\t", "e\u0301", "a\u00a0\u00a0b\u202fc", ""]
    expected = [unicodedata.normalize("NFC", re.sub(r"[ \t]+", " ", t).strip()) for t in texts]
    assert tokenizer.decode_batch(encode_all(tokenizer, texts)) == expected


def test_impossible_sizes_are_reported() -> None:
    with pytest.warns(UserWarning, match=r"vocabulary=5000: the texts yield a vocabulary of only \d+ ids"):
        tokenizer = train_bpe(TEXTS, 5000)
    assert tokenizer.token_to_id("<pad>") == tokenizer.get_vocab_size() - 1
    with pytest.raises(
        ValueError, match=r"vocabulary=20: three special tokens and \d+ distinct characters require at least \d+"
    ):
        train_bpe(TEXTS, 20)


def test_equal_texts_give_equal_tokenizers() -> None:
    code = (
        "import sys; from manyheads.data.text.tokenizers import train_bpe; from pathlib import Path\n"
        "sys.stdout.write(train_bpe(sys.argv[1].split('|'), 80).to_str())"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code, "|".join(TEXTS)],
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    ]
    assert outputs[0] == outputs[1] == train_bpe(TEXTS, 80).to_str()


def test_bad_tokenizer_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file"):
        load_tokenizer(tmp_path / "none.json")
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(ValueError, match=r"t\.json: not a tokenizer"):
        load_tokenizer(tmp_path / "t.json")

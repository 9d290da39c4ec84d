"""Tokenizers of foreign directories give the same ids as those of transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import (
    BertTokenizer,
    GPT2Tokenizer,
    OpenAIGPTTokenizer,
    PegasusTokenizer,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

from manyheads.interop.vocabularies import foreign_tokenizers
from tests.support.opus import ENGLISH, GERMAN, HARD, sentencepiece_model, write_opus_tokenizer

Find = Callable[[str], Path]
TEXTS = [
    *HARD, "I'll we've THEY'D it's", "naïve Ünicode Ö́", "北京 is big", "[SEP] a [MASK] b[CLS] [sep]",
    "a<|endoftext|> b", "  <|endoftext|>  x", "x\u0000y\ufffdz\u00a0w", "".join(map(chr, range(33, 127))),
    "a" * 150 + " b", "한국어 हिन्दी عربى", "👨\u200d👩\u200d👧",
]  # fmt: skip


def write(path: Path, **about: Any) -> None:
    (path / "tokenizer_config.json").write_text(json.dumps(about))


def assert_equal_ids(ours: Tokenizer, theirs: Any, texts: list[str]) -> None:
    """Check that both tokenizers read and write the texts alike."""
    for text in texts:
        ids = ours.encode(text).ids
        assert ids == theirs(text)["input_ids"]
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def assert_equal_pairs(ours: Tokenizer, theirs: Any) -> None:
    """Check that both tokenizers read a pair of texts alike, without segment ids."""
    pair = ours.encode("a dog", "the cat")
    assert pair.ids == theirs("a dog", "the cat")["input_ids"]
    assert not any(pair.type_ids)


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"do_lower_case": False},
        {"do_lower_case": False, "strip_accents": True},
        {"strip_accents": False, "tokenize_chinese_chars": False},
        {"mask_token": {"content": "[MASK]", "lstrip": True, "__type": "AddedToken"}},
        {"added_tokens_decoder": {"30522": {"content": "<new>", "special": False, "normalized": False}}},
        {"additional_special_tokens": ["[sep]", "[unused7]"]},
    ],
)
def test_bert_is_read(real_data: Find, tmp_path: Path, about: dict[str, Any]) -> None:
    (tmp_path / "vocab.txt").write_bytes((real_data("bert_vocab") / "vocab.txt").read_bytes())
    write(tmp_path, **about)
    theirs = BertTokenizer.from_pretrained(tmp_path)
    found = foreign_tokenizers(tmp_path, "bert", about)
    assert found is not None
    assert found[0] is found[1]
    for text in [*TEXTS, "a <new> b"]:
        assert found[0].encode(text).ids == theirs(text)["input_ids"]
    pair = theirs("a dog", "the cat")
    assert found[0].encode("a dog", "the cat").type_ids == pair["token_type_ids"]
    ids = pair["input_ids"]
    assert found[0].decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("words", "about", "tokens"),
    [
        (["Paris", "paris"], {}, ["Paris", "paris"]),
        (["Paris", "paris"], {"do_lower_case": True}, ["paris", "paris"]),
        (["paris"], {}, ["paris", "paris"]),
    ],
)
def test_a_cased_vocabulary_keeps_upper_case(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, words: list[str], about: dict[str, Any], tokens: list[str]
) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    found = foreign_tokenizers(tmp_path, "bert", about)
    assert found is not None
    assert found[0].encode("Paris paris").tokens[1:-1] == tokens
    kept = "keeping upper case, because vocab.txt has words such as 'Paris'"
    assert (kept in caplog.text) == (tokens[0] == "Paris")


def test_files_of_older_versions_are_read(real_data: Find, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes((real_data("bert_vocab") / "vocab.txt").read_bytes())
    special = {"mask_token": {"content": "[MASK]", "lstrip": True}, "additional_special_tokens": ["<e>"]}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"unk_token": "[UNK]", **special}))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"New": 30523, "<e>": 30522}))
    theirs = BertTokenizer.from_pretrained(tmp_path)
    found = foreign_tokenizers(tmp_path, "bert", {})
    assert found is not None
    for text in ["a <e> b [MASK] new New", "<E> renewed"]:
        assert found[0].encode(text).ids == theirs(text)["input_ids"]
    assert found[0].token_to_id("New") == 30523


@pytest.mark.parametrize("about", [{}, {"add_prefix_space": True, "pad_token": "[P]"}, {"add_bos_token": True}])
def test_gpt2_is_read(real_data: Find, tmp_path: Path, about: dict[str, Any]) -> None:
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((real_data("gpt2_tokenizer") / name).read_bytes())
    write(tmp_path, **about)
    theirs = GPT2Tokenizer.from_pretrained(tmp_path)
    found = foreign_tokenizers(tmp_path, "gpt2", about)
    assert found is not None
    for text in TEXTS:
        ids = found[0].encode(text).ids
        assert ids == theirs(text)["input_ids"]
        assert found[0].decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert found[0].encode("Studying Deep-Learning is").ids[-1] == 318
    assert found[0].token_to_id("<|endoftext|>") == 50256


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"add_prefix_space": True},
        {"added_tokens_decoder": {"50268": {"content": "<mask>", "lstrip": True, "special": True}}},
    ],
)
def test_roberta_is_read(real_data: Find, tmp_path: Path, about: dict[str, Any]) -> None:
    """With GPT-2's merges, as RoBERTa has them, and its special tokens behind them."""
    vocabulary = json.loads((real_data("gpt2_tokenizer") / "vocab.json").read_text())
    special = ["<s>", "<pad>", "</s>", "<unk>"] + ["<mask>"] * ("added_tokens_decoder" not in about)
    vocabulary |= {token: len(vocabulary) + i for i, token in enumerate(special) if token not in vocabulary}
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    about = json.loads(json.dumps(about).replace("50268", str(len(vocabulary))))
    (tmp_path / "merges.txt").write_bytes((real_data("gpt2_tokenizer") / "merges.txt").read_bytes())
    write(tmp_path, **about)
    theirs = RobertaTokenizer.from_pretrained(tmp_path)
    found = foreign_tokenizers(tmp_path, "roberta", about)
    assert found is not None
    assert_equal_ids(found[0], theirs, [*TEXTS, "a <mask> b</s>", "The  <mask>, dog"])
    assert_equal_pairs(found[0], theirs)


def test_gpt_is_read(tmp_path: Path) -> None:
    pieces = ["<unk>", *"abcdefgo", *(f"{c}</w>" for c in "abcdefgo"), "do", "dog</w>"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nd o\ndo g</w>\n")
    write(tmp_path)
    theirs = OpenAIGPTTokenizer.from_pretrained(tmp_path)
    found = foreign_tokenizers(tmp_path, "openai-gpt", {})
    assert found is not None
    for text in [*TEXTS, "dog do bad doge"]:
        assert found[0].encode(text).ids == theirs(text)["input_ids"]
    assert found[0].decode(found[0].encode("Dog bad").ids) == "dog bad"


@pytest.mark.parametrize("about", [{}, {"offset": 5}, {"mask_token": "<mask_2>", "mask_token_sent": "<mask_1>"}])
@pytest.mark.parametrize("rule", ["nmt_nfkc", "identity"])
def test_pegasus_is_read(tmp_path: Path, about: dict[str, Any], rule: str) -> None:
    special = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "normalization_rule_name": rule}
    (tmp_path / "spiece.model").write_bytes(sentencepiece_model([*ENGLISH, *GERMAN], 120, **special))
    write(tmp_path, **about)
    theirs = PegasusTokenizer.from_pretrained(tmp_path)
    found = foreign_tokenizers(tmp_path, "pegasus", about)
    assert found is not None
    assert_equal_ids(found[0], theirs, [*TEXTS, "a <mask_1> b <unk_3>c"])
    assert found[0].get_vocab_size() == len(theirs)


@pytest.mark.parametrize("about", [{}, {"mask_token": "<m>"}])
@pytest.mark.parametrize("rule", ["nmt_nfkc", "identity"])
def test_xlm_roberta_is_read(tmp_path: Path, about: dict[str, Any], rule: str) -> None:
    model = sentencepiece_model([*ENGLISH, *GERMAN], 120, normalization_rule_name=rule)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model)
    write(tmp_path, tokenizer_class="XLMRobertaTokenizer", **about)
    theirs = XLMRobertaTokenizer.from_pretrained(tmp_path)
    found = foreign_tokenizers(tmp_path, "xlm-roberta", {"tokenizer_class": "XLMRobertaTokenizer", **about})
    assert found is not None
    assert_equal_ids(found[0], theirs, [*TEXTS, "a <mask> b </s> c", "a<m>b"])
    assert_equal_pairs(found[0], theirs)
    assert found[0].get_vocab_size() == len(theirs)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kind": "bpe"},
        {"joint": True},
        {"separate": True},
        {"split_special_tokens": True},
        {"additional_special_tokens": ["<eop>", "dog"]},
        {"eos_token": {"content": "</s>", "__type": "AddedToken"}},
    ],
)
def test_marian_is_read(tmp_path: Path, settings: dict[str, Any]) -> None:
    theirs = write_opus_tokenizer(tmp_path, **settings)
    about = json.loads((tmp_path / "tokenizer_config.json").read_text())
    found = foreign_tokenizers(tmp_path, "marian", about)
    assert found is not None
    source, target = found
    source.encode_special_tokens = target.encode_special_tokens = settings.get("split_special_tokens", False)
    assert (source is target) == ("joint" in settings)
    sources, targets = theirs(TEXTS)["input_ids"], theirs(text_target=TEXTS)["input_ids"]
    assert [encoding.ids for encoding in source.encode_batch(TEXTS)] == sources
    assert [encoding.ids for encoding in target.encode_batch_fast(TEXTS)] == targets
    assert sum(ids.count(theirs.unk_token_id) > 0 for ids in sources) > 20
    assert target.decode_batch(targets) == theirs.batch_decode(targets, skip_special_tokens=True)
    assert source.get_vocab_size() == len(theirs)


@pytest.mark.parametrize(
    ("model_type", "files", "about", "message"),
    [
        ("marian", {"source.spm": "x", "vocab.json": "{}"}, {}, "source.spm, vocab.json without target.spm"),
        ("marian", {"source.spm": "x", "target.spm": "x", "vocab.json": "{}"}, {}, "not the files of a tokenizer"),
        ("gpt2", {"vocab.json": "{}"}, {}, "vocab.json without merges.txt; copy the model again"),
        ("gpt2", {"vocab.json": "[1", "merges.txt": ""}, {}, "vocab.json, merges.txt: "),
        ("pegasus", {"spiece.model": "no"}, {}, "spiece.model: "),
        ("bert", {"vocab.txt": b"\xff"}, {}, "vocab.txt: not the files of a tokenizer"),
        ("bert", {"vocab.txt": "[UNK]"}, {"tokenizer_class": "BertJapaneseTokenizer"}, "found a BertJapaneseTokenizer"),
    ],
)  # fmt: skip
def test_invalid_tokenizers_are_reported_in_one_line(
    tmp_path: Path, model_type: str, files: dict[str, str | bytes], about: dict[str, Any], message: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message) as caught:
        foreign_tokenizers(tmp_path, model_type, about)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_a_directory_without_splits(tmp_path: Path) -> None:
    assert foreign_tokenizers(tmp_path, "marian", {}) is None
    assert foreign_tokenizers(tmp_path, "manyheads-transformer", {}) is None

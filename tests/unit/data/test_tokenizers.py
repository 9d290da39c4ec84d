"""Tokenizers of each kind, compared with transformers, brute force, or plain Python."""

from __future__ import annotations

import json
import random
import re
import string
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer, BertTokenizer, GPT2Tokenizer, PreTrainedTokenizerBase, RobertaTokenizer

from manyheads.data.text import tokenizers
from manyheads.data.text.tokenizers import load_tokenizer, train_bpe, train_wordpiece
from manyheads.data.text.windows import positions_after_truncation
from tests.paths import ROOT

WORDS = [
    "The", "the", "dog's", "Café", "RUNS,", "running\u00a0run!", "(über)", "北京", "12,345", "straße", "naïve", "<br",
    "/>", "e-mail", "“quoted”", "don't", "x_y",
]  # fmt: skip
TEXTS = [" ".join(random.Random(i).choices(WORDS, k=9)) for i in range(300)]
SPELLINGS = ["</s>", "<pad>", "<unk>", "[SEP]", "[PAD]", "[MASK] x", "a [CLS] b", "<|endoftext|>", "a<|endoftext|>b"]
HARD = [
    *TEXTS[:5],
    "",
    "  two   spaces ",
    "I'll we've they'd",
    "naïve NAÏVE Ünicode",
    "東京 и 🎉👍🏽",
    "a\n\tb\u3000c",
    *SPELLINGS,
]
TRAIN: dict[str, Callable[[list[str]], Tokenizer]] = {
    "wordpiece": lambda texts: tokenizers.train_wordpiece(texts, 120),
    "cased": lambda texts: tokenizers.train_wordpiece(texts, 120, lowercase=False),
    "byte_bpe": lambda texts: tokenizers.train_byte_bpe(texts, 300),
    "roberta_bpe": lambda texts: tokenizers.train_roberta_bpe(texts, 300),
    "unigram": lambda texts: tokenizers.train_unigram(texts, 75),
    "character": tokenizers.train_character,
    "word_level": lambda texts: tokenizers.train_word_level(texts, 12),
    "bpe": lambda texts: train_bpe(texts, 100),
    "words": lambda texts: tokenizers.train_words(texts, 40, "en", begin=True),
}
SPECIAL = {
    "wordpiece": tokenizers.BERT_TOKENS, "cased": tokenizers.BERT_TOKENS, "byte_bpe": [tokenizers.END_OF_TEXT],
    "roberta_bpe": [*tokenizers.ROBERTA_TOKENS, "<mask>"],
    "unigram": ["</s>", "<unk>", "<pad>"], "bpe": ["</s>", "<unk>", "<pad>"],
    "character": [tokenizers.END_OF_TEXT, "<unk>"], "word_level": ["[PAD]", "[UNK]"], "words": tokenizers.WORD_TOKENS,
}  # fmt: skip


@cache
def trained(kind: str) -> Tokenizer:
    return TRAIN[kind]([*TEXTS, *SPELLINGS])  # so that what spells a special token is made of known characters


def through_transformers(tokenizer: Tokenizer, path: Path) -> PreTrainedTokenizerBase:
    """AutoTokenizer on the two files, as a model directory has them."""
    tokenizer.save(str(path / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "split_special_tokens": True}
    (path / "tokenizer_config.json").write_text(json.dumps(about))
    return AutoTokenizer.from_pretrained(path)


@pytest.mark.parametrize("kind", TRAIN)
def test_a_saved_model_gives_equal_results_here_and_in_transformers(tmp_path: Path, kind: str) -> None:
    tokenizer = trained(kind)
    theirs = through_transformers(tokenizer, tmp_path)
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert again.to_str() == tokenizer.to_str()
    for text in HARD:
        ids = tokenizer.encode(text).ids
        assert again.encode(text).ids == theirs(text)["input_ids"] == ids
        assert again.decode(ids) == tokenizer.decode(ids)


@pytest.mark.parametrize("kind", TRAIN)
def test_text_that_spells_a_special_token_is_plain_text(tmp_path: Path, kind: str) -> None:
    tokenizer = trained(kind)
    theirs = through_transformers(tokenizer, tmp_path)
    own = {tokenizer.token_to_id(token) for token in SPECIAL[kind]}
    added = Counter(tokenizer.encode("").ids)  # [CLS], </s>
    unknown = tokenizer.token_to_id({"word_level": "[UNK]", "words": "<unk>"}.get(kind, ""))  # most words are, here
    for text in SPELLINGS:
        for ids in (tokenizer.encode(text).ids, theirs(text)["input_ids"]):
            assert {i for i in Counter(ids) - added if i in own} <= {unknown}, text
            if kind in ("byte_bpe", "character", "unigram", "bpe"):
                assert tokenizer.decode(ids) == text


def test_equal_texts_give_equal_files() -> None:
    code = (
        "import sys, json; from manyheads.data.text import tokenizers as t; texts = json.loads(sys.argv[1])\n"
        "print(json.dumps([t.train_wordpiece(texts, 120).to_str(), t.train_byte_bpe(texts, 300).to_str(),\n"
        "t.train_roberta_bpe(texts, 300).to_str(),\n"
        "t.train_unigram(texts, 75).to_str(), t.train_character(texts).to_str(),\n"
        "t.train_word_level(texts, 12).to_str(), t.train_words(texts, 40, 'en', begin=True).to_str()]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, json.dumps(TEXTS)], cwd=ROOT,
        env={"PYTHONHASHSEED": "7"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    kinds = ("wordpiece", "byte_bpe", "roberta_bpe", "unigram", "character", "word_level", "words")
    assert json.loads(run.stdout) == [TRAIN[kind](TEXTS).to_str() for kind in kinds]


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("en", "A man's T-shirt, (don't) 2", "A man 's T - shirt , ( do n't ) 2"),
        ("en", "They're in, isn't it?", "They 're in , is n't it ?"),
        ("de", "Obst- und Gemüse im T-Shirt: „Ja!“", "Obst- und Gemüse im T-Shirt : „ Ja ! “"),
    ],
)
def test_words_are_split_as_by_spacy_and_joined_again(language: str, text: str, words: str) -> None:
    """The expected words are the output of spacy.blank(language) 3.8."""
    tokenizer = tokenizers.train_words([text], 4 + len(set(words.split())), language, begin=False)
    encoding = tokenizer.encode(text)
    assert encoding.tokens == [*words.split(), "<eos>"]
    assert tokenizer.decode(encoding.ids) == text.replace("„Ja!“", "„ Ja! “")  # blanks at quotation marks are lost
    assert tokenizer.encode("unheard").tokens == ["<unk>", "<eos>"]


@pytest.mark.parametrize("kind", ["wordpiece", "cased"])
def test_wordpiece_equals_berts(kind: str) -> None:
    tokenizer = trained(kind)
    theirs = BertTokenizer(vocab=tokenizer.get_vocab(), do_lower_case=kind == "wordpiece", split_special_tokens=True)
    assert [tokenizer.token_to_id(token) for token in tokenizers.BERT_TOKENS] == [0, 1, 2, 3, 4]
    assert tokenizer.get_vocab_size() == 120
    for first, second in zip(HARD, [*HARD[9:], *HARD[:9]], strict=True):
        assert tokenizer.encode(first).ids == theirs(first)["input_ids"]
        if not second:  # which transformers takes for no pair
            continue
        pair, expected = tokenizer.encode(first, second), theirs(first, second)
        assert (pair.ids, pair.type_ids) == (expected["input_ids"], expected["token_type_ids"])
    assert "[UNK]" not in tokenizer.encode(TEXTS[0]).tokens
    assert tokenizer.decode(tokenizer.encode("running the dog").ids) == "running the dog"
    assert tokenizer.encode("😀").tokens == ["[CLS]", "[UNK]", "[SEP]"]


def test_byte_bpe_equals_gpt2(tmp_path: Path) -> None:
    tokenizer = trained("byte_bpe")
    model = json.loads(tokenizer.to_str())["model"]
    vocabulary = {**model["vocab"], tokenizers.END_OF_TEXT: 299}
    merges: list[Any] = [tuple(pair) for pair in model["merges"]]
    theirs = GPT2Tokenizer(vocab=vocabulary, merges=merges, split_special_tokens=True)
    assert tokenizer.token_to_id(tokenizers.END_OF_TEXT) == tokenizer.get_vocab_size() - 1 == 299
    assert len(merges) == 43
    for text in [*HARD, "\x00\ud7ff\U0010ffff"]:
        assert tokenizer.encode(text).ids == theirs(text)["input_ids"]
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_roberta_bpe_equals_roberta() -> None:
    tokenizer = tokenizers.with_special_tokens(trained("roberta_bpe"), as_text=False)
    model = json.loads(tokenizer.to_str())["model"]
    merges: list[Any] = [tuple(pair) for pair in model["merges"]]
    mask: Any = AddedToken("<mask>", lstrip=True, special=True)  # as in the files of roberta-base
    theirs = RobertaTokenizer(
        vocab={**model["vocab"], "<mask>": 299}, merges=merges, add_prefix_space=True, mask_token=mask
    )
    assert [tokenizer.token_to_id(token) for token in ("<s>", "<pad>", "</s>", "<unk>", "<mask>")] == [0, 1, 2, 3, 299]
    for text in [*HARD, "\x00\ud7ff\U0010ffff", "The <mask> dog, <mask>."]:
        assert tokenizer.encode(text).ids == theirs(text)["input_ids"]
        assert tokenizer.encode(text, "a dog").ids == theirs(text, "a dog")["input_ids"]
    assert tokenizer.encode("dog").tokens[1:-1] == tokenizer.encode("a dog").tokens[-3:-1] == ["Ġdo", "g"]


def test_unigram_finds_the_most_probable_pieces() -> None:
    tokenizer = trained("unigram")
    size = tokenizer.get_vocab_size()
    assert [tokenizer.token_to_id(token) for token in ("</s>", "<unk>", "<pad>")] == [0, 1, size - 1]
    score = dict(json.loads(tokenizer.to_str())["model"]["vocab"])
    assert size - 1 == len(score) == 74
    for word in ("▁running", "▁straße", "▁quoted", "▁naïve"):
        cuts = [
            [word[a:b] for a, b in zip((0, *inner), (*inner, len(word)), strict=True)]
            for n in range(len(word))
            for inner in combinations(range(1, len(word)), n)
        ]
        best = max(cuts, key=lambda pieces: sum(score.get(piece, -1e9) for piece in pieces))
        assert tokenizer.encode(word.removeprefix("▁")).tokens == [*best, "</s>"]
    assert tokenizer.encode("x😀").ids[1:] == [1, 0]


def test_character_ids_round_trip() -> None:
    tokenizer = tokenizers.train_character(["ba\n", "c a"])
    assert tokenizer.get_vocab() == {"<|endoftext|>": 0, "<unk>": 1, "\n": 2, " ": 3, "a": 4, "b": 5, "c": 6}
    assert tokenizer.encode("b\n caé😀").ids == [5, 2, 3, 6, 4, 1, 1]
    text = "".join(TEXTS)
    assert trained("character").decode(trained("character").encode(text).ids) == text


@pytest.mark.parametrize("lowercase", [True, False])
def test_word_level_standardizes_as_keras(lowercase: bool) -> None:
    def words(text: str) -> list[str]:
        return re.sub(f"[{re.escape(string.punctuation)}]", "", text.lower() if lowercase else text).split()

    tokenizer = tokenizers.train_word_level(TEXTS, 8, lowercase=lowercase)
    counts = Counter(word for text in TEXTS for word in words(text))
    kept = sorted(counts, key=lambda word: (-counts[word], word))[:6]
    assert tokenizer.get_vocab() == {"[PAD]": 0, "[UNK]": 1} | {word: i for i, word in enumerate(kept, 2)}
    for text in HARD:
        assert tokenizer.encode(text).ids == [kept.index(w) + 2 if w in kept else 1 for w in words(text)]
    assert tokenizer.encode("The dogs, <br />").tokens[0] == ("the" if lowercase else "The")


LEAST = {"wordpiece": 73, "byte_bpe": 257, "roberta_bpe": 261, "unigram": 54, "word_level": 3}


@pytest.mark.parametrize("kind", LEAST)
@pytest.mark.parametrize("missing", [1, 10_000])
def test_a_too_small_vocabulary_is_reported_in_one_line(kind: str, missing: int) -> None:
    train = getattr(tokenizers, f"train_{kind}")
    size = LEAST[kind]
    with pytest.raises(ValueError, match=rf"vocabulary={size - missing}: .* require at least {size} ids") as caught:
        train(TEXTS, size - missing)
    assert "\n" not in str(caught.value)
    assert train(TEXTS, size).get_vocab_size() == size
    with pytest.warns(UserWarning, match=r"vocabulary=9000: the texts yield a vocabulary of only \d+ ids"):
        train(TEXTS, 9000)
    with pytest.raises(ValueError, match="found 2 texts that are all empty"):
        train(["", " "], 300)


@pytest.mark.parametrize("name", ["train_wordpiece", "train_byte_bpe", "train_bpe"])
def test_a_very_long_word_takes_linear_time(name: str) -> None:
    """Uncut, 100,000 letters take many seconds and ten times as many a hundred times that."""
    letters = "".join(random.Random(1).choices("abcdefghij", k=100_000))
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        getattr(tokenizers, name)([letters], 400)
    assert time.process_time() - started < 2


def test_text_without_long_words_is_unchanged() -> None:
    assert [*tokenizers._Texts(["a " * 5000, "b"])] == ["a " * 5000, "b"]
    long = "x" * 1200 + " y"
    assert "".join(tokenizers._Texts([long])) == long
    assert [len(piece) for piece in tokenizers._Texts([long])] == [500, 500, 202]


def test_texts_and_pairs_are_truncated_as_in_tokenizers() -> None:
    tokenizer = train_wordpiece(TEXTS, 120)
    words = " ".join(TEXTS).split()
    for first, second, limit in product((1, 4, 9), (0, 1, 4, 5, 9), range(3, 16)):
        inputs = " ".join(words[:first]), " ".join(words[:second]) if second else None
        whole = tokenizer.encode(*inputs)
        cutting = Tokenizer.from_str(tokenizer.to_str())
        cutting.enable_truncation(limit)
        expected = cutting.encode(*inputs)
        places = positions_after_truncation(whole.sequence_ids, limit)
        assert [whole.ids[place] for place in places] == expected.ids
        assert [whole.type_ids[place] for place in places] == expected.type_ids

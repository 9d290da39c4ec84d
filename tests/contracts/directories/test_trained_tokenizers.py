"""Trained tokenizers in model directories: lossless round trips here, in transformers and in its pipelines."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.data.text import tokenizers
from manyheads.data.text.tokenizers import train_bpe
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.models.text_classifier import TextClassifier, TextClassifierConfig
from tests.support.reference import SENTENCES, ours

SPELLINGS = ["</s>", "<pad> a", "<unk>", "[SEP]", "a [PAD]", "[MASK] dog", "[CLS]", "<|endoftext|>", "a<|endoftext|>b"]
SPECIAL = {*tokenizers.BERT_TOKENS, "</s>", "<pad>", "<unk>", tokenizers.END_OF_TEXT}
TEXTS = [*SENTENCES, *SPELLINGS]
WIDTHS: dict[str, Any] = {"width": 12, "layers": 1, "heads": 2}


def bert(tokenizer: Tokenizer, head: str = "pooler", labels: tuple[str, ...] = ()) -> Bert:
    sizes = {"vocab": tokenizer.get_vocab_size(), "feed_forward": 20, "max_positions": 40, **WIDTHS}
    return Bert(BertConfig(**sizes, head=head, labels=labels))  # type: ignore[arg-type]


def gpt(tokenizer: Tokenizer) -> GPT:
    end = tokenizer.token_to_id(tokenizers.END_OF_TEXT)
    return GPT(GPTConfig(vocab=tokenizer.get_vocab_size(), end=end, max_positions=64, **WIDTHS))


def translator(tokenizer: Tokenizer) -> Any:
    size = tokenizer.get_vocab_size()
    return ours("marian", vocabulary=size, pad=size - 1, start=size - 1, encoder_heads=2, width=32)


def classifier(tokenizer: Tokenizer) -> TextClassifier:
    return TextClassifier(TextClassifierConfig(vocab=tokenizer.get_vocab_size(), width=8, head_width=4, feed_forward=8))


KINDS: dict[str, tuple[Callable[[], Tokenizer], Callable[[Tokenizer], Any]]] = {
    "wordpiece": (lambda: tokenizers.train_wordpiece(TEXTS * 2, 110), bert),
    "byte_bpe": (lambda: tokenizers.train_byte_bpe(TEXTS * 2, 290), gpt),
    "character": (lambda: tokenizers.train_character(TEXTS), gpt),
    "bpe": (lambda: train_bpe(TEXTS * 2, 75), translator),
    "unigram": (lambda: tokenizers.train_unigram(TEXTS * 2, 65), translator),
    "word_level": (lambda: tokenizers.train_word_level(TEXTS, 20), classifier),
}


@cache
def trained(kind: str) -> Tokenizer:
    return KINDS[kind][0]()


@pytest.mark.parametrize("kind", KINDS)
def test_text_that_spells_a_special_token_stays_text(tmp_path: Path, kind: str) -> None:
    tokenizer = trained(kind)
    directory.save(tmp_path, KINDS[kind][1](tokenizer), tokenizer)
    again = directory.load(tmp_path).tokenizer
    assert again is not None
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    around = tokenizer.encode("").ids  # [CLS] and [SEP], or </s>
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        assert again.encode(text).ids == theirs(text)["input_ids"] == ids
        words = ids[1:-1] if kind == "wordpiece" else ids[: len(ids) - len(around)]
        tokens = {tokenizer.id_to_token(i) for i in words} - {"[UNK]"}  # most words are, at the word level
        assert not tokens & SPECIAL, text
        if kind not in ("wordpiece", "word_level"):
            assert theirs.decode(words) == again.decode(words) == text


def test_pairs_have_segments_in_transformers(tmp_path: Path) -> None:
    directory.save(tmp_path, bert(trained("wordpiece")), trained("wordpiece"))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    encoded, expected = theirs("a dog", "two [SEP] cats"), trained("wordpiece").encode("a dog", "two [SEP] cats")
    assert (encoded["input_ids"], encoded["token_type_ids"]) == (expected.ids, expected.type_ids)
    assert sorted(set(expected.type_ids)) == [0, 1]


HEADS: dict[str, tuple[str, tuple[str, ...]]] = {
    "fill-mask": ("masked_lm", ()),
    "text-classification": ("sequence", ("bad", "good")),
    "token-classification": ("token", ("O", "B-X")),
    "feature-extraction": ("pooler", ()),
    "zero-shot-classification": ("sequence", ("contradiction", "entailment")),
}


@pytest.mark.parametrize("task", HEADS)
def test_bert_directories_work_in_pipelines(tmp_path: Path, task: str) -> None:
    tokenizer = KINDS["wordpiece"][0]()
    model = bert(tokenizer, *HEADS[task]).eval()
    tokenizer.encode_special_tokens = task != "fill-mask"  # there a [MASK] in a text is the mask
    directory.save(tmp_path, model, tokenizer)
    pipeline: Any = transformers.pipeline(task, model=str(tmp_path))  # type: ignore[call-overload]
    text = "two men are walking a dog"
    encoded = tokenizer.encode(text)
    with torch.no_grad():
        if task == "fill-mask":
            found = pipeline(f"two {pipeline.tokenizer.mask_token} are walking", top_k=3)
            assert len(found) == 3
            assert sum(each["score"] for each in found) <= 1
            return
        logits = model(torch.tensor([encoded.ids]), None, torch.tensor([encoded.type_ids]))[0]
    if task == "text-classification":
        best = logits.softmax(-1)
        assert pipeline(text) == [
            {"label": ("bad", "good")[int(best.argmax())], "score": pytest.approx(float(best.max()))}
        ]
    elif task == "token-classification":
        found = pipeline(text, ignore_labels=[])
        assert [each["word"] for each in found] == encoded.tokens[1:-1]
        assert [each["score"] for each in found] == pytest.approx(logits.softmax(-1).amax(-1)[1:-1].tolist(), abs=1e-5)
        assert [(each["start"], each["end"]) for each in found] == encoded.offsets[1:-1]
    elif task == "feature-extraction":
        assert len(pipeline(text)[0]) == len(encoded.ids)
    else:
        assert set(pipeline(text, candidate_labels=["dog", "cat"])["labels"]) == {"dog", "cat"}


@pytest.mark.parametrize("kind", ["byte_bpe", "character"])
def test_gpt_directories_work_in_the_pipeline(tmp_path: Path, kind: str) -> None:
    directory.save(tmp_path, gpt(trained(kind)), trained(kind))
    pipeline: Any = transformers.pipeline("text-generation", model=str(tmp_path))
    for text in ("two men", "a <|endoftext|> dog"):
        found = pipeline(text, max_new_tokens=5, do_sample=False)[0]["generated_text"]
        assert found.startswith(text)

"""Tagging: labeled tokens, windows, loss and pipeline of transformers, learning, and errors."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.core.runtime import ComputeConfig, prepare
from manyheads.data.readers.conll import Tagged
from manyheads.data.sources.corpora import TaggedSource
from manyheads.data.text.tokenizers import train_wordpiece
from manyheads.data.text.windows import word_windows
from manyheads.models.bert import Bert, BertConfig
from manyheads.tasks.evaluation import trust
from manyheads.tasks.tagging.objective import IGNORED, TaggingObjective
from manyheads.tasks.tagging.predictor import Tagger
from tests.support.learning import learn

LABELS = ("O", "B-LOC", "I-LOC", "B-PER")
SENTENCES = Tagged(
    [["Anna", "moved", "to", "New", "York", "."], ["Yorkshire", "is", "old"], ["Anna"], ["Nobody", "moved", "!"]],
    [["B-PER", "O", "O", "B-LOC", "I-LOC", "O"], ["B-LOC", "O", "O"], ["B-PER"], ["O", "O", "O"]],
)


@pytest.fixture(scope="module")
def compute() -> ComputeConfig:
    return prepare()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_wordpiece([" ".join(words) for words in SENTENCES.words], 57, lowercase=False)


def tagger_model(tokenizer: Tokenizer, positions: int = 24) -> Bert:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"width": 16, "layers": 2, "heads": 2, "feed_forward": 32, "max_positions": positions}
    config = BertConfig(
        vocab=tokenizer.get_vocab_size(), head="token", labels=LABELS, dropout=0.0, attention_dropout=0.0, **sizes
    )
    model = Bert(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def task_for(
    model: Bert, tokenizer: Tokenizer, compute: ComputeConfig, tagged: Tagged = SENTENCES, length: int = 24
) -> TaggingObjective:
    return TaggingObjective(
        model, tokenizer, tagged, tagged, compute=compute, batch_tokens=128, max_length=length, seed=1
    )


def saved(path: Path, model: Bert, tokenizer: Tokenizer) -> Tagger:
    directory.save(path, model, tokenizer)
    return Tagger(directory.load(path), prepare())


def test_the_first_sub_token_of_a_word_is_labeled(tokenizer: Tokenizer, compute: ComputeConfig) -> None:
    """Against the alignment that transformers' own example of token classification makes."""
    task = task_for(tagger_model(tokenizer), tokenizer, compute)
    (batch,) = task.batches(0)
    assert batch.items == 13
    rows = {
        tuple(ids[:n]): labels[:n]
        for ids, n, labels in zip(batch.ids.tolist(), batch.lengths, batch.labels.tolist(), strict=True)
    }
    for words, tags in zip(SENTENCES.words, SENTENCES.tags, strict=True):
        encoding = tokenizer.encode(words, is_pretokenized=True)
        expected, before = [], None
        for word in encoding.word_ids:
            expected.append(IGNORED if word is None or word == before else LABELS.index(tags[word]))
            before = word
        assert rows[tuple(encoding.ids)] == expected


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_pretraining_loss_equals_transformers(
    tmp_path: Path, tokenizer: Tokenizer, compute: ComputeConfig, mode: str
) -> None:
    model = tagger_model(tokenizer)
    task = task_for(model, tokenizer, compute)
    (batch,) = task.batches(0)
    directory.save(tmp_path, model, tokenizer)
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path)
    for each in (model, theirs):
        each.train(mode == "train")
    mask = torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]
    expected = theirs(batch.ids, attention_mask=mask.long(), labels=batch.labels).loss
    loss = task.loss(batch).mean
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-5)
    loss.backward()
    expected.backward()
    ours = model.classifier.weight.grad if model.classifier else None
    torch.testing.assert_close(ours, theirs.classifier.weight.grad, rtol=0, atol=1e-5)
    model.eval()
    assert task.validate()["loss"] == pytest.approx(expected.item(), abs=1e-5)


def test_a_long_text_is_read_in_windows_with_maximum_context(tokenizer: Tokenizer) -> None:
    words = [word for _ in range(9) for words in SENTENCES.words for word in words]
    several = word_windows(tokenizer, [words, ["Anna"]], 12)
    assert max(len(w.ids) for w in several) <= 12
    long = [w for w in several if w.sentence == 0]
    assert [word for w in long for word in w.words] == list(range(len(words)))
    ids = tokenizer.encode(words, is_pretokenized=True, add_special_tokens=False)
    for window in long:
        assert window.ids[0] == tokenizer.token_to_id("[CLS]")
        assert window.ids[-1] == tokenizer.token_to_id("[SEP]")
        for word, position in zip(window.words, window.positions, strict=True):
            assert window.ids[position] == ids.ids[ids.word_ids.index(word)]
            # half of a window is new, so a quarter of it is on either side unless the text ends there
            assert position > 2 or window is long[0]


def test_batch_equals_single_for_any_length(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tagger = saved(tmp_path, tagger_model(tokenizer, positions=12), tokenizer)
    texts = ["Anna moved to New York.", "", "Yorkshire, (is) old! " * 20, "Nobody"]
    together = tagger.tag(texts)
    assert [t.text for t in together] == texts
    for text, one in zip(texts, together, strict=True):
        alone = tagger.tag(text)
        assert [w[:2] for w in alone.words] == [w[:2] for w in one.words]
        assert [w.probability for w in alone.words] == pytest.approx([w.probability for w in one.words], abs=1e-5)
        assert all(text[w.start : w.end] == w.text for w in one.words)
    assert len(together[2].words) == 20 * 7
    assert together[1].words == [] == together[1].entities
    given = tagger.tag([["Anna", "moved", "to", "New", "York", "."]])[0]
    assert given.text == "Anna moved to New York ."
    assert [w[:2] for w in given.words] == [w[:2] for w in together[0].words]
    assert given.words[3].start == 14
    controls = tagger.tag([["Anna", "\u0000", "moved"]])[0]  # the tokenizer drops such a word
    assert len(controls.words) == 3


def test_training_learns_sentences_and_finds_entities(
    tmp_path: Path, tokenizer: Tokenizer, compute: ComputeConfig
) -> None:
    model = tagger_model(tokenizer)
    task = task_for(model, tokenizer, compute)
    learn(task, torch.optim.AdamW(model.parameters(), 1e-2), 60)
    model.eval()
    values = task.validate()
    assert values["loss"] < 0.05
    assert values["entity_f1"] == values["accuracy"] == 1.0
    tagger = saved(tmp_path, model, tokenizer)
    found = tagger.tag("Anna moved to New York.")
    assert str(found) == "Anna/B-PER moved/O to/O New/B-LOC York/I-LOC ./O"
    place = found.entities[1]
    assert (place.kind, place.text, place.start, place.end) == ("LOC", "New York", 14, 22)
    assert 0.9 < place.probability <= 1.0
    outcome = tagger.evaluate(SENTENCES)
    assert outcome.metrics["entity_f1"]["value"] == 1.0
    assert outcome.quality == [1.0] * 4
    assert outcome.outputs == outcome.references

    pipe = transformers.pipeline("token-classification", model=str(tmp_path))
    for words in SENTENCES.words:
        text = " ".join(words)
        theirs: dict[int, Any] = {int(e["start"]): (e["entity"], e["score"]) for e in pipe(text)}
        for word in tagger.tag(text).words:
            label, score = theirs.get(word.start, ("O", None))
            assert label == word.tag
            assert score is None or score == pytest.approx(word.probability, abs=1e-5)


def test_unseen_labels_and_windows_without_space(tokenizer: Tokenizer, compute: ComputeConfig) -> None:
    other = Tagged([["x", "y"]], [["O", "B-ORG"]], lines=[7], file=Path("dev.txt"))
    with pytest.raises(ValueError, match=r"dev\.txt:8: the tag 'B-ORG' does not occur in the training data"):
        TaggingObjective(
            tagger_model(tokenizer),
            tokenizer,
            SENTENCES,
            other,
            compute=compute,
            batch_tokens=64,
            max_length=12,
            seed=1,
        )
    with pytest.raises(ValueError, match="too short for words"):
        word_windows(tokenizer, [["x"]], 3)


def test_half_a_character_is_reported(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tagger = saved(tmp_path, tagger_model(tokenizer), tokenizer)
    with pytest.raises(ValueError, match="text 2 contains half a character .* at position 6; give valid UTF-8"):
        tagger.tag([["Anna"], ["Anna", "\ud800"]])


def test_the_test_data_of_a_run_are_found_again(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tagger = saved(tmp_path / "run", tagger_model(tokenizer), tokenizer)
    with pytest.raises(ValueError, match="found no result.json that names its test data"):
        tagger.outcome()
    test = tmp_path / "test.txt"
    test.write_text("Anna B-PER\nmoved O\n\nYorkshire B-LOC\n")
    from_file = tagger.outcome(str(test))
    assert tagger.outcome(str(tmp_path)).metrics == from_file.metrics
    settings = asdict(TaggedSource(test=str(test)))
    record = {"data": {**settings, "kind": "tagged", "fingerprints": {"test": "0" * 16}}}
    (tmp_path / "run" / "result.json").write_text(json.dumps(record))
    trust(tmp_path / "run")
    with pytest.raises(ValueError, match="changed since the run"):
        tagger.outcome()
    test.write_text("Anna B-PER\nmoved B-ORG\n")
    with pytest.raises(ValueError, match=r"test\.txt:2: the tag 'B-ORG'"):
        tagger.outcome(str(test))

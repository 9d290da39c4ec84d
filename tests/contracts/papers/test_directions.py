"""Reading directions: predicted words, the linear probe against scikit-learn's, and the comparison as a recipe."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import manyheads
from manyheads import directory
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.conll import Tagged
from manyheads.data.text.pretraining import Example, PretrainingData, Rules, Special
from manyheads.data.text.tokenized_documents import TokenizedDocuments
from manyheads.data.text.tokenizers import train_wordpiece
from manyheads.models.directions import DIRECTIONS, Direction, DirectionalConfig, DirectionalEncoder
from papers.directions.recipes import RECIPES
from papers.directions.task import Batch, DirectionsTask, linear_probe, probe, word_features

ROUTE = ComputeConfig("cpu", "float32", 1, "highest", False)
TEXTS = ["two dogs see one cat", "one cat sleeps", "two cats see", "some dogs sleep here today"]


def examples() -> list[Example]:
    """[CLS] a b c [SEP] with b masked, and [CLS] d [SEP] with d masked."""
    return [Example([2, 11, 4, 13, 3], [0] * 5, [2], [12], None), Example([2, 4, 3], [0] * 3, [1], [14], None)]


def test_each_reading_is_probed_at_its_predictions() -> None:
    masked, before, both = (Batch.of(examples(), reading, 0) for reading in DIRECTIONS)
    assert masked.ids.tolist() == [[2, 11, 4, 13, 3], [2, 4, 3, 0, 0]]
    assert [(at.tolist(), words.tolist()) for at, words in masked.predicted] == [([2, 6], [12, 14])]
    for batch in (before, both):
        assert batch.ids.tolist() == [[2, 11, 12, 13, 3], [2, 14, 3, 0, 0]]
        at, words = batch.predicted[0]
        assert at.tolist() == [0, 1, 2, 3, 5, 6]
        assert words.tolist() == [11, 12, 13, 3, 14, 3]
    at, words = both.predicted[1]
    assert at.tolist() == [1, 2, 3, 4, 6, 7]
    assert words.tolist() == [2, 11, 12, 13, 2, 14]
    assert [batch.items for batch in (masked, before, both)] == [2, 6, 12]


def task(reading: Direction) -> DirectionsTask:
    tokenizer = train_wordpiece(TEXTS * 3, 60)
    torch.manual_seed(0)
    model = DirectionalEncoder(
        DirectionalConfig(tokenizer.get_vocab_size(), reading, width=24, heads=2, feed_forward=40)
    )
    rules = Rules(next_sentence=False, short=0.0)
    documents = TokenizedDocuments.of([[text] for text in TEXTS], tokenizer)
    data = PretrainingData(documents, rules, Special.of(tokenizer), tokenizer.get_vocab_size(), seed=1)
    return DirectionsTask(model, tokenizer, data, data, compute=ROUTE, batch_tokens=200, seed=1)


@pytest.mark.parametrize("reading", DIRECTIONS)
def test_reading_models_are_compiled_on_request(reading: Direction, monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(function: Any, **how: Any) -> Any:
        return lambda *inputs: [2 * features for features in function(*inputs)]

    plain = task(reading)
    monkeypatch.setattr(torch, "compile", compiled)
    doubled = replace(plain, compute=replace(ROUTE, compiled=True))
    batch = plain.batches(0)[0]
    assert plain.loss(batch).total != doubled.loss(batch).total


@pytest.mark.parametrize("reading", DIRECTIONS)
def test_one_batch_can_be_overfitted_within_the_reading(reading: Direction) -> None:
    made = task(reading)
    batch = made.batches(0)[0]
    optimizer = torch.optim.Adam(made.model.parameters(), lr=1e-2)
    for _ in range(80):
        optimizer.zero_grad()
        loss = made.loss(batch).mean
        loss.backward()
        optimizer.step()
    # the first or last word of a text is unpredictable: 4 texts have 3 different ones
    assert float(loss.detach()) < (0.05 if reading == "bidirectional" else 0.7)


def test_the_probe_is_ridge_regularized_softmax_regression() -> None:
    random = np.random.default_rng(0)
    centers = random.normal(size=(4, 6)) * 1.5
    labels, asked_labels = random.integers(4, size=600), random.integers(4, size=400)
    features, asked = (centers[each] + random.normal(size=(len(each), 6)) for each in (labels, asked_labels))
    features[:, 2] *= 100  # scaling is part of the probe
    asked[:, 2] *= 100
    known, wanted = (torch.tensor(x, dtype=torch.float32) for x in (features, asked))
    found = linear_probe(known, torch.tensor(labels), wanted, 4)
    mean, deviation = features.mean(0), features.std(0, ddof=1)
    theirs = LogisticRegression(C=1 / (2 * 1e-4 * 600), max_iter=2000).fit((features - mean) / deviation, labels)
    same = (found.numpy() == theirs.predict((asked - mean) / deviation)).mean()
    assert same > 0.99
    assert (found.numpy() == asked_labels).mean() > 0.7


@pytest.mark.parametrize("reading", DIRECTIONS)
def test_word_features_are_those_of_the_first_token(reading: Direction) -> None:
    made = task(reading)
    sentences = [text.split() for text in TEXTS]
    found = word_features(made.model.eval(), made.tokenizer, sentences, ROUTE, context=True)
    alone = word_features(made.model, made.tokenizer, sentences, ROUTE, context=False)
    row = 0
    for sentence in sentences:
        encoded = made.tokenizer.encode(sentence, is_pretokenized=True)
        features = made.model(torch.tensor([encoded.ids]))[0]
        for word in range(len(sentence)):
            at = encoded.word_ids.index(word)
            torch.testing.assert_close(found[row], features[at], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(alone[row], made.model.embedding(torch.tensor(encoded.ids[at])))
            row += 1
    assert row == len(found)


def test_homographs_are_distinguished_by_context() -> None:
    """Tag the first x of a text: only the following word decides, so a left-to-right model fails."""
    texts = [["x", "y"], ["x", "z"]] * 20
    tagged = Tagged(texts, [["O", "O"], ["B-A", "O"]] * 20)
    tokenizer = train_wordpiece(["x y z"] * 3, 20)
    scores = {}
    for reading in DIRECTIONS:
        torch.manual_seed(0)
        model = DirectionalEncoder(
            DirectionalConfig(tokenizer.get_vocab_size(), reading, width=24, heads=2, feed_forward=40)
        )
        scores[reading] = probe(model, tokenizer, tagged, tagged, ROUTE, context=True)["accuracy"]["value"]
        assert probe(model, tokenizer, tagged, tagged, ROUTE, context=False)["accuracy"]["value"] == 0.75
    assert scores == {"bidirectional": 1.0, "left_to_right": 0.75, "two_lstms": 1.0}


def test_mistakes_are_reported_before_reading_data(tmp_path: Path) -> None:
    for setting, message in (("layer", "unknown settings layer"), ("vocab", "cannot set vocab: the data and the task")):
        with pytest.raises(ValueError, match=message):
            manyheads.train("reading", {"data": "absent", f"model.{setting}": 3}, out=tmp_path / "out", recipes=RECIPES)


def test_the_recipe_compares_all_and_resumes(tmp_path: Path) -> None:
    for name, count in (("train", 60), ("val", 20)):
        lines = [f"{'B-A O' if row % 2 else 'O O'} {row % 7}" for row in range(count)]
        (tmp_path / f"{name}.txt").write_text("".join(
            f"n{number} {one}\nis {two}\n\n" for one, two, number in (line.split() for line in lines)))  # fmt: skip
    out = tmp_path / "out"
    settings: dict[str, Any] = {
        "data": str(tmp_path), "vocabulary": 60, "threads": 1, "training.steps": 4, "training.warmup": 1,
        "training.checkpoint_every": 2, "training.validate_every": 4,
        "model": {"width": 8, "heads": 2, "feed_forward": 8, "layers": 1},
    }  # fmt: skip
    assert not manyheads.train("reading", settings, out=out, max_minutes=1e-9, recipes=RECIPES)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    table: Any = manyheads.train("reading", settings, out=out, recipes=RECIPES)
    torch.set_num_threads(threads)
    rows = [line.split()[0] for line in table.splitlines()]
    assert rows == ["features", "words", *DIRECTIONS]
    record = json.loads((out / "result.json").read_text())
    assert record["hardware"]["threads"] == 1, "those of the setting"
    for reading in DIRECTIONS:  # the words are 60 x 8 numbers, and make most of the products
        part = json.loads((out / reading / "result.json").read_text())
        assert part["flops"] / part["target_tokens"] > 3 * 2 * (60 * 8 + 8 * 4)
    assert set(record["readings"]) == {*DIRECTIONS, "words_alone"}
    assert record["metrics"]["accuracy"]["value"] == record["readings"]["bidirectional"]["accuracy"]
    for reading in DIRECTIONS:
        assert directory.load(out / reading).model.config.reading == reading
    assert manyheads.train("reading", settings, out=out, recipes=RECIPES) == table

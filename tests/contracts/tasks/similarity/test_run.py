"""Embeddings: training on pairs, triplets and scores, scores of the encoder, and parity with sentence-transformers."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import manyheads
from manyheads import cli, directory
from manyheads.core.runtime import prepare
from manyheads.data.readers.text_pairs import TextPairs
from manyheads.errors import UserError
from manyheads.models.presets import build, preset
from manyheads.tasks.similarity.metrics import IndexedPairs, retrieval, retrieval_metrics
from manyheads.tasks.similarity.objective import Batch, EmbeddingObjective, known_pairs
from tests.support import services

SMALL: dict[str, Any] = {
    "model.width": 16, "model.heads": 2, "model.layers": 1, "model.feed_forward": 16, "vocabulary": 200, "threads": 1,
}  # fmt: skip
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
PAIRS = [(f"{a} and {b}", f"{b} plus {a}") for a in NUMBERS for b in NUMBERS if a != b]


def rows(kind: str) -> list[dict[str, Any]]:
    more: list[dict[str, Any]] = [
        {"negative": PAIRS[i - 1][1]} if kind == "triplets" else {"score": i % 6} if kind == "scores" else {}
        for i in range(len(PAIRS))
    ]
    return [{"text": a, "pair": b, **fields} for (a, b), fields in zip(PAIRS, more, strict=True)]


def trained(out: Path, kind: Any = "pairs", **settings: Any) -> Any:
    data = rows(kind)
    given = {**SMALL, "training.epochs": 2, **settings}
    return manyheads.train("embedding", given, out=out, train=data[10:], validation=data[:5], test=data[5:10])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    trained(out := tmp_path_factory.mktemp("similarity") / "run")
    return out


@pytest.mark.parametrize("kind", ["pairs", "triplets", "scores"])
def test_each_kind_of_pairs_trains_and_is_scored(tmp_path: Path, kind: str) -> None:
    result = trained(tmp_path / "run", kind, **{"training.learning_rate": 1e-2, "training.epochs": 8})
    names = {"spearman", "pearson"} if kind == "scores" else {"mrr", "recall_at_1", "recall_at_10"}
    assert names <= {*result["metrics"]}
    assert result["pairs"] == kind
    losses = [entry["validation_loss"] for entry in result.history if "validation_loss" in entry]
    assert min(losses) < losses[0]
    data = rows(kind)[:20]
    outcome = manyheads.load(tmp_path / "run").outcome(data)
    assert {*outcome.metrics} == names
    assert len(outcome.quality) == 20


@pytest.mark.parametrize("pool", ["mean", "first", "max"])
def test_sentence_transformers_opens_the_directory_with_equal_vectors(tmp_path: Path, pool: str) -> None:
    library = pytest.importorskip("sentence_transformers")
    trained(tmp_path / "run", pool=pool, max_length=8, **{"training.steps": 2})
    texts = ["one and two", "nine", "ten plus six and four plus one and two plus nine"]
    ours = np.stack([e.vector for e in manyheads.load(tmp_path / "run").embed(texts, truncate=True)])
    theirs = library.SentenceTransformer(str(tmp_path / "run"), device="cpu").encode(texts)
    assert ((ours * theirs).sum(1) > 1 - 1e-6).all()


def test_the_trained_directory_states_its_pooling_and_limit(tmp_path: Path) -> None:
    trained(tmp_path / "run", pool="first", max_length=8, **{"training.steps": 1})
    predictor = manyheads.load(tmp_path / "run")
    states = predictor.embed("one and two", pool="tokens").vector
    np.testing.assert_allclose(predictor.embed("one and two").vector, states[0] / np.linalg.norm(states[0]), atol=1e-6)
    with pytest.raises(UserError, match="the limit is 8"):
        predictor.embed("one and " * 10)
    # A further run starts from the pooling and the limit of the directory.
    manyheads.train("embedding", {"training.steps": 1}, out=tmp_path / "next", init=str(tmp_path / "run"), train=PAIRS)
    assert manyheads.load(tmp_path / "next").sentences.pool == "first"
    assert manyheads.load(tmp_path / "next").sentences.max_tokens == 8


def test_resume_gives_identical_weights(tmp_path: Path) -> None:
    data = rows("triplets")
    settings = {**SMALL, "training.epochs": 3, "batch_items": 16, "training.checkpoint_every": 4}

    def train(out: Path, stop: int | None, *, resume: bool = False) -> None:
        def callback(entry: dict[str, Any]) -> bool:
            return stop is None or entry.get("step", 0) < stop

        given = settings | {"training.log_every": 1}
        splits: Any = {"train": data[5:], "validation": data[:5], "callbacks": [callback]}
        if resume:
            manyheads.train(resume=out, **splits)
        else:
            manyheads.train("embedding", given, out=out, **splits)

    train(tmp_path / "whole", None)
    train(tmp_path / "parts", 7)
    train(tmp_path / "parts", None, resume=True)
    whole, parts = (directory.load(tmp_path / name).model.state_dict() for name in ("whole", "parts"))
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, rtol=0, atol=0)


def objective_of(run: Path, data: TextPairs) -> EmbeddingObjective:
    loaded = directory.load(run)
    assert loaded.tokenizer is not None
    return EmbeddingObjective(
        loaded.model, loaded.tokenizer, data, data, compute=prepare("float32"), batch_tokens=1000, seed=1,
        batch_items=4, max_length=16, truncate=False, pool="mean", temperature=0.05,
    )  # fmt: skip


def texts_of(objective: EmbeddingObjective, batch: Batch) -> list[list[str]]:
    decode = objective.tokenizer.decode
    return [[decode(row[:n].tolist()) for row, n in zip(ids, lengths, strict=True)] for ids, lengths in batch.columns]


def test_the_loss_is_the_cross_entropy_of_scaled_cosines(run: Path) -> None:
    pairs = ["two", "four", "nine", "two"]
    objective = objective_of(run, TextPairs(["one and two", "three", "one and two", "six"], pairs))
    (batch,) = objective.batches(0)
    texts, pairs = texts_of(objective, batch)
    vectors = {text: torch.tensor(manyheads.load(run).embed(text).vector) for text in {*texts, *pairs}}
    total = 0.0
    for i in range(4):
        right = {pair for text, pair in zip(texts, pairs, strict=True) if text == texts[i]}
        negatives = [pair for pair in pairs if pair not in right]
        cosines = torch.stack([vectors[texts[i]] @ vectors[name] for name in (pairs[i], *negatives)]) / 0.05
        total += float(F.cross_entropy(cosines, torch.tensor(0)))
    assert objective.loss(batch).total.item() == pytest.approx(total, abs=1e-4)


def test_the_losses_equal_those_of_sentence_transformers(run: Path) -> None:
    library = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    texts, pairs = ([pair[side] for pair in PAIRS[:36:9]] for side in (0, 1))
    negatives, scores = [pair[1] for pair in PAIRS[4:40:9]], [0.1, 1.0, 0.0, 5.0]
    model = pytest.importorskip("sentence_transformers").SentenceTransformer(str(run), device="cpu")
    kinds = (
        TextPairs(texts, pairs),
        TextPairs(texts, pairs, negatives=negatives),
        TextPairs(texts, pairs, scores=scores),
    )
    for data in kinds:
        objective = objective_of(run, data)
        (batch,) = objective.batches(0)
        features = [model.preprocess(column) for column in texts_of(objective, batch)]
        if batch.scores is None:
            expected = library.MultipleNegativesRankingLoss(model, scale=20.0)(features, None)
        else:
            expected = library.CosineSimilarityLoss(model)(features, batch.scores)
        assert objective.loss(batch).mean.item() == pytest.approx(expected.item(), rel=1e-5)


def test_texts_equal_to_the_pair_are_no_negatives() -> None:
    # Text 0 occurs twice, with the pairs 5 and 6; text 1 also has the pair 5; the text of row 3 is a candidate.
    keys = np.array([[0, 0, 1, 7], [5, 6, 5, 8], [6, 9, 7, 7]])
    known = known_pairs(keys).astype(int).tolist()
    assert known == [
        [0, 1, 1, 0, 1, 0, 0, 0],
        [1, 0, 1, 0, 1, 0, 0, 0],
        [1, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 1, 1],
    ]


def test_retrieval_metrics_equal_torchmetrics() -> None:
    library = pytest.importorskip("torchmetrics.functional.retrieval")
    random = np.random.default_rng(1)
    texts, pairs = [f"t{i}" for i in range(40)], [f"p{i}" for i in range(40)]
    data = TextPairs(texts, pairs, [f"n{i}" for i in range(40)])
    index = IndexedPairs.of(data)
    vectors = F.normalize(torch.from_numpy(random.normal(size=(120, 6))), dim=1)
    ranks, nearest, losses = retrieval(vectors, index.rows, 0.5)
    metrics = retrieval_metrics(ranks, 80)
    at = {text: i for i, text in enumerate(index.texts)}
    candidates = [at[text] for text in pairs + data.negatives]
    similarities = vectors[[at[text] for text in texts]] @ vectors[candidates].T
    positive = 1 + similarities  # This library counts no item with a negative score.
    truth = torch.eye(40, 80, dtype=torch.bool)
    expected = torch.stack([library.retrieval_reciprocal_rank(s, t) for s, t in zip(positive, truth, strict=True)])
    assert metrics["mrr"]["value"] == pytest.approx(float(expected.mean()))
    for count in (1, 10):
        hits = [float(library.retrieval_recall(s, t, top_k=count)) for s, t in zip(positive, truth, strict=True)]
        assert metrics[f"recall_at_{count}"]["value"] == pytest.approx(np.mean(hits))
    assert nearest.tolist() == [candidates[i] for i in similarities.argmax(1)]
    reference = F.cross_entropy(similarities / 0.5, torch.arange(40), reduction="none")
    torch.testing.assert_close(losses, reference)


def test_equal_vectors_rank_last_and_other_pairs_do_not_count() -> None:
    index = IndexedPairs.of(TextPairs(["a", "a", "b"], ["p", "q", "r"]))
    ranks, *_ = retrieval(torch.ones(len(index.texts), 1), index.rows)
    assert ranks.tolist() == [2, 2, 3]  # p and q are both pairs of a


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"batch_items": 1}, "batch_items is 1: expected 2 or more"),
        ({"batch_tokens": 6}, "each batch has one pair, which has no negatives"),
        ({"pool": "tokens"}, "pool: expected one of mean, first, max or none, found 'tokens'"),
        ({"max_length": 3}, "train:11: has 5 tokens, the limit is 3|tokens, the limit is 3"),
        ({"temperature": 0}, "temperature is 0"),
    ],
)
def test_wrong_settings_are_one_line(tmp_path: Path, settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError) as error:
        trained(tmp_path / "run", **settings)
    assert any(part in str(error.value) for part in fault.split("|")), error.value
    assert "\n" not in str(error.value)


def test_the_first_token_is_not_pooled_without_a_special_token(tmp_path: Path) -> None:
    tokenizer = Tokenizer(WordLevel({"[PAD]": 0, "one": 1, "[UNK]": 2}, unk_token="[UNK]"))
    model = build(preset("bert/tiny", vocab=tokenizer.get_vocab_size(), width=16, layers=1, heads=2, head="none"))
    directory.save(tmp_path / "bert", model, tokenizer)
    with pytest.raises(UserError, match="pool=first reads the state of the special token before a text"):
        manyheads.train("embedding", {"pool": "first"}, out=tmp_path / "run", init=str(tmp_path / "bert"), train=PAIRS)


def test_temperature_has_no_effect_on_scores(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="temperature: no effect on pairs with scores"):
        trained(tmp_path / "run", "scores", temperature=0.1)


def test_prompts_of_the_initial_model_are_reported(run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory.load(run).save(tmp_path / "bert")
    (tmp_path / "bert" / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "q: "}}))
    with caplog.at_level(logging.WARNING):
        manyheads.train("embedding", {"steps": 1}, out=tmp_path / "run", init=str(tmp_path / "bert"), train=PAIRS)
    assert "(query) are not used in training" in caplog.text


def test_an_encoder_reranks_by_cosine(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = ["two plus one", "nine", "one and two"]
    encoder = manyheads.load(run)
    query, *vectors = (e.vector for e in encoder.embed(["one and two", *documents]))
    ranked = encoder.rerank("one and two", documents)
    assert [found.score for found in ranked] == pytest.approx(sorted((float(v @ query) for v in vectors), reverse=True))
    assert ranked[0][::2] == (2, "one and two")
    assert encoder.rerank("one and two", documents, top=1) == ranked[:1]
    assert cli.main(["rerank", str(run), "one and two", *documents, "--top", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"{found.score:.4f}\t{found.document}" for found in ranked[:2]]
    with pytest.raises(UserError, match="the query is blank"):
        encoder.rerank(" ", documents)
    with pytest.raises(UserError, match="top is 0: expected 1 or more"):
        encoder.rerank("a", documents, top=0)


def test_classifiers_of_pairs_rerank(tmp_path: Path) -> None:
    documents = ["the cat sat", "a dog", "the"]
    two = manyheads.load(services.bert(tmp_path / "two", head="sequence", labels=("no", "yes")))
    ranked = two.rerank("a cat", documents)
    labels = two.classify(["a cat"] * 3, documents, top=2)
    yes = [next(label.probability for label in found if label.label == "yes") for found in labels]
    assert [found.score for found in ranked] == pytest.approx(sorted(yes, reverse=True), abs=1e-6)
    one = manyheads.load(services.bert(tmp_path / "one", head="sequence", labels=("LABEL_0",), target="regression"))
    numbers = one.predict(["a cat"] * 3, documents)
    assert [found.score for found in one.rerank("a cat", documents)] == pytest.approx(sorted(numbers, reverse=True))
    three = manyheads.load(services.bert(tmp_path / "three", head="sequence", labels=("a", "b", "c")))
    assert "rerank" not in three.supported
    with pytest.raises(UserError, match="one of two labels for each pair of texts, but this model has 3 labels"):
        three.rerank("a cat", documents)

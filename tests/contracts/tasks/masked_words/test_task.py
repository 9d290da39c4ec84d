"""BERT pretraining and mask filling: loss and predicted words compared with transformers, one batch memorized."""

from __future__ import annotations

import math
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.documents import sentences
from manyheads.data.text.pretraining import PretrainingData, Rules, Special
from manyheads.data.text.tokenized_documents import TokenizedDocuments
from manyheads.data.text.tokenizers import train_wordpiece
from manyheads.models.bert import Bert, BertConfig
from manyheads.tasks.loading import load
from manyheads.tasks.masked_words import predictor
from manyheads.tasks.masked_words.objective import Batch, MaskedLMObjective, mean_scores, scores
from manyheads.tasks.masked_words.predictor import MaskedLanguageModel, _best_combinations, _group_texts
from tests.support.learning import learn

ROUTE = ComputeConfig("cpu", "float32", 1, "highest", False)
TEXT = [
    "The cat sees a dog. The dog sees no cat. They are not at home. Nobody knows where they went today.",
    "It rains all day. The roof is leaking again. A bucket stands below it. Soon it will be full of water.",
    "Numbers are easy. One and two make three. Two and three make five. Ten of them are enough for most people.",
    "Ships sail at night. Their lamps are red and green. A pilot comes aboard. He knows the harbour by heart.",
]
DOCUMENTS = [sentences(text) for text in TEXT]
LEARNED = ["The red cat sleeps.", "A big ship sails.", "My old dog barks.", "Some cold rain falls."]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_wordpiece(TEXT * 2, 160)


def model(head: str, vocabulary: int, **settings: Any) -> Bert:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"width": 24, "layers": 2, "heads": 2, "feed_forward": 40, "max_positions": 40}
    made = Bert(BertConfig(**{"vocab": vocabulary, "head": head, "dropout": 0.0, "attention_dropout": 0.0,
                              **sizes, **settings}))  # fmt: skip
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return made


def data(tokenizer: Tokenizer, pairs: bool, length: int = 32, **rules: Any) -> PretrainingData:
    made = Rules(length=length, next_sentence=pairs, **rules)
    documents = TokenizedDocuments.of(DOCUMENTS, tokenizer)
    return PretrainingData(documents, made, Special.of(tokenizer), tokenizer.get_vocab_size(), seed=1)


def task(tokenizer: Tokenizer, pairs: bool, batch_tokens: int = 160, **settings: Any) -> MaskedLMObjective:
    made = data(tokenizer, pairs, **settings)
    bert = model("pretraining" if pairs else "masked_lm", tokenizer.get_vocab_size())
    return MaskedLMObjective(bert, tokenizer, made, made, compute=ROUTE, batch_tokens=batch_tokens, seed=1)


@pytest.mark.parametrize("pairs", [True, False])
def test_the_loss_equals_transformers(tokenizer: Tokenizer, pairs: bool, tmp_path: Path) -> None:
    ours = task(tokenizer, pairs)
    ours.save(tmp_path)
    name = "BertForPreTraining" if pairs else "BertForMaskedLM"
    theirs = getattr(transformers, name).from_pretrained(tmp_path).train()
    batches = ours.batches(0)
    assert len(batches)
    for batch in batches:
        labels = torch.full_like(batch.ids, -100)
        labels.view(-1)[batch.at] = batch.answers
        asked: dict[str, Any] = {
            "input_ids": batch.ids, "token_type_ids": batch.segments, "labels": labels,
            "attention_mask": (torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]).long(),
        }  # fmt: skip
        loss = ours.loss(batch).mean
        expected = theirs(**asked, **({"next_sentence_label": batch.follows} if pairs else {})).loss
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
        ours.model.zero_grad()
        theirs.zero_grad()
        loss.backward()
        expected.backward()
        for mine, their in (
            (ours.model.embedding.weight, theirs.bert.embeddings.word_embeddings.weight),
            (ours.model.output_bias, theirs.cls.predictions.bias),
            (ours.model.get_parameter("segments.weight"), theirs.bert.embeddings.token_type_embeddings.weight),
        ):
            assert mine is not None
            torch.testing.assert_close(mine.grad, their.grad, rtol=1e-4, atol=1e-6)


def test_validation_covers_all_masked_words_and_pairs(tokenizer: Tokenizer) -> None:
    ours = task(tokenizer, True)
    ours.model.eval()
    found = ours.validate()
    epoch = ours.validation.epoch(0)
    losses, right, told = [], [], []
    for example in epoch:
        batch = Batch.of([example], 0)
        with torch.no_grad():
            words, follows = ours.model(batch.ids, batch.lengths, batch.segments)
        for at, answer in zip(example.positions, example.answers, strict=True):
            losses.append(-float(words[0, at].log_softmax(-1)[answer]))
            right.append(int(words[0, at].argmax()) == answer)
        told.append((int(follows[0].argmax()) == 0) == example.follows)
    assert found["loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]), rel=1e-5)
    assert found["accuracy"] == pytest.approx(sum(right) / len(right))
    assert found["next_sentence_accuracy"] == pytest.approx(sum(told) / len(told))
    assert mean_scores(list(scores(ours.model, epoch, ROUTE, 64))) == pytest.approx(found, abs=1e-5)


@pytest.mark.parametrize("pairs", [True, False])
def test_one_batch_can_be_overfitted(tokenizer: Tokenizer, pairs: bool) -> None:
    ours = task(tokenizer, pairs, batch_tokens=256)
    batch = ours.batches(0)[0]
    optimizer = torch.optim.Adam(ours.model.parameters(), lr=1e-2)
    for _ in range(80):
        optimizer.zero_grad()
        loss = ours.loss(batch).mean
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.05


def test_batches_hold_the_epochs_examples_by_seed_and_epoch(tokenizer: Tokenizer) -> None:
    ours = task(tokenizer, True)
    for epoch in (0, 1):
        held = [batch.ids[row, : batch.lengths[row]].tolist() for batch in ours.batches(epoch)
                for row in range(len(batch.ids))]  # fmt: skip
        assert sorted(held) == sorted(example.tokens for example in ours.train.epoch(epoch))
    assert [b.ids.tolist() for b in ours.batches(1)] == [b.ids.tolist() for b in task(tokenizer, True).batches(1)]
    assert [b.ids.tolist() for b in ours.batches(1)] != [b.ids.tolist() for b in ours.batches(0)]


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> MaskedLanguageModel:
    """Return a model that has memorized LEARNED."""
    path = tmp_path_factory.mktemp("filler")
    tokenizer = train_wordpiece(LEARNED * 2, 83)
    documents = TokenizedDocuments.of([[text] for text in LEARNED * 8], tokenizer)
    made = PretrainingData(documents, Rules(next_sentence=False), Special.of(tokenizer), 83, seed=1)
    bert = model("masked_lm", tokenizer.get_vocab_size(), layers=1)
    ours = MaskedLMObjective(bert, tokenizer, made, made, compute=ROUTE, batch_tokens=512, seed=1)
    learn(ours, torch.optim.Adam(ours.model.parameters(), lr=1e-2), 100)
    ours.save(path)
    found = load(path)
    assert isinstance(found, MaskedLanguageModel)
    return found


def test_a_pretrained_model_fills_memorized_words(filler: MaskedLanguageModel) -> None:
    best = filler.fill("The red [MASK] sleeps.")[0]
    assert (best.token, best.text) == ("cat", "The red cat sleeps.")
    assert best.probability > 0.5
    both = filler.fill("Some [MASK] rain [MASK].", top=1)[0]
    assert (both.token, both.text) == ("cold falls", "Some cold rain falls.")


def test_words_and_probabilities_equal_the_pipeline(filler: MaskedLanguageModel) -> None:
    pipeline = transformers.pipeline("fill-mask", str(filler.path), top_k=7)
    for text in ("The red [MASK] sleeps.", "[MASK] big ship", "my DOG\tbarks [MASK]"):
        expected: Any = pipeline(text)
        found = filler.fill(text, top=7)
        assert [fill.probability for fill in found] == pytest.approx([each["score"] for each in expected], abs=1e-5)
        assert [fill.token for fill in found] == [each["token_str"] for each in expected]


def test_several_masks_are_filled_by_the_most_likely_combinations(filler: MaskedLanguageModel) -> None:
    pipeline = transformers.pipeline("fill-mask", str(filler.path), top_k=12)
    text = "A [MASK] ship [MASK]."
    both: Any = pipeline(text)
    one, two = both
    every = sorted((a["score"] * b["score"] for a in one for b in two), reverse=True)
    found = filler.fill(text, top=12)
    assert [fill.probability for fill in found] == pytest.approx(every[:12], abs=1e-6)
    assert found[0].text == f"A {one[0]['token_str']} ship {two[0]['token_str']}."
    assert len({fill.text for fill in found}) == 12


def test_batch_results_equal_single_results_for_texts(filler: MaskedLanguageModel) -> None:
    texts = ["The red [MASK] sleeps.", "It [MASK] and [MASK].", "Some cold rain, and a big [MASK]."] * 20
    together = filler.fill(texts, top=3)
    assert len(together) == 60
    for text, fills in zip(texts[:3], together[57:], strict=True):
        alone = filler.fill(text, top=3)
        assert [fill.text for fill in fills] == [fill.text for fill in alone]
        assert [f.probability for f in fills] == pytest.approx([f.probability for f in alone], abs=1e-5)


def test_a_continuation_piece_joins_its_word(filler: MaskedLanguageModel) -> None:
    inner = next(piece for piece in filler.tokenizer.get_vocab() if piece.startswith("##"))
    filled = filler._make_fill("Soon [MASK] x", 0.5, [filler.tokenizer.get_vocab()[inner]])
    assert filled.text == f"Soon{inner[2:]} x"


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["no mask here"], r"^text 1 has no \[MASK\]: write"),
        (["It [MASK].", "It [MASK] \ud800."], r"^text 2 contains half a character .* at position 11; give valid UTF-8"),
        (["It [MASK].", ""], r"^text 2 has no \[MASK\]"),
        (["It [MASK]" + " cat" * 40], r"^text 1 has \d+ tokens, the model takes 40: shorten it"),
    ],
)
def test_texts_without_masks_are_reported(filler: MaskedLanguageModel, texts: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        filler.fill(texts)


def test_filling_requires_words_and_a_mask(tokenizer: Tokenizer, tmp_path: Path) -> None:
    directory.save(tmp_path / "a", model("sequence", 160, labels=("x", "y")), None)
    other = Tokenizer.from_str(tokenizer.to_str().replace("[MASK]", "[HIDE]"))
    directory.save(tmp_path / "b", model("masked_lm", 160), other)
    with pytest.raises(ValueError, match="has no mask token"):
        load(tmp_path / "b")
    directory.save(tmp_path / "c", model("masked_lm", 160), None)
    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        load(tmp_path / "c")


def test_evaluation_works_on_any_text(filler: MaskedLanguageModel, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("\n\n".join(LEARNED))
    outcome = filler.outcome(str(tmp_path / "text.txt"))
    assert len(outcome.inputs) == len(outcome.quality) == 4
    assert outcome.metrics["accuracy"]["value"] == sum(outcome.quality) / 4  # one word of each text is masked
    assert outcome.quality == [float(a == b) for a, b in zip(outcome.outputs, outcome.references, strict=True)]
    assert any("[MASK]" in text for text in outcome.inputs)
    with pytest.raises(ValueError, match="no result.json that names its validation data. Give some with --data PATH"):
        filler.outcome()


def test_many_masks_use_little_time_and_memory(filler: MaskedLanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["The red [MASK] sleeps.", "[MASK] " * 9, "It [MASK] and [MASK]."] * 20
    whole = filler.fill(texts, top=3)
    monkeypatch.setattr(predictor, "LOGITS", 10 * filler.model.config.vocab)
    for one, other in zip(whole, filler.fill(texts, top=3), strict=True):
        assert [fill.text for fill in one] == [fill.text for fill in other]
    assert [len(rows) for rows in _group_texts([4, 4, 4, 30, 1, 1], 10)] == [2, 1, 1, 2]
    with pytest.raises(ValueError, match="text 2 has 11 masks and top is 1,000: expected at most 10,000 words in all"):
        filler.fill(["[MASK]", "[MASK] " * 11], top=1000)


@pytest.mark.parametrize("masks", [1, 2, 3, 4])
def test_the_best_combinations_are_found(masks: int) -> None:
    rng = random.Random(masks)
    chances = [sorted((rng.uniform(-5, 0) for _ in range(4)), reverse=True) for _ in range(masks)]
    words = [[10 * mask + place for place in range(4)] for mask in range(masks)]
    every = [
        (sum(chances[mask][place] for mask, place in enumerate(places)), [words[m][p] for m, p in enumerate(places)])
        for places in product(range(4), repeat=masks)
    ]
    best = _best_combinations(chances, words, 4)
    expected = sorted(every, reverse=True)[:4]
    assert [chosen for _, chosen in best] == [chosen for _, chosen in expected]
    assert [total for total, _ in best] == pytest.approx([total for total, _ in expected])

"""GPT fine-tuned on texts and pairs: input formats, learning, and loading of the saved model by transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import manyheads
from manyheads import cli, directory
from manyheads.core.runtime import prepare
from manyheads.data.readers.labeled import Labeled
from manyheads.data.text.tokenizers import train_byte_bpe, train_character
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.service.server import Settings, service_of
from manyheads.tasks.classification.objective import ClassificationObjective
from manyheads.tasks.classification.special_tokens import SPECIAL_TOKENS, add_classifier_tokens
from manyheads.tasks.encoding import encode
from manyheads.tasks.evaluation import evaluate
from manyheads.tasks.targets import Target
from manyheads.tasks.train import train
from tests.contracts.tasks.classification.test_run import BAD, GOOD, SMALL, rows, write
from tests.support.services import Ask, asked_of

START, DELIMITER, EXTRACT = SPECIAL_TOKENS
SIZES: dict[str, Any] = {"width": 16, "layers": 2, "heads": 2, "max_positions": 64}
RATES: dict[str, Any] = {"dropout": 0.0, "attention_dropout": 0.0, "embedding_dropout": 0.0}
ONCE: dict[str, Any] = {"training.epochs": 1}


def made(path: Path, tokenizer: Tokenizer, **settings: Any) -> Path:
    """A language model that has not been trained."""
    torch.manual_seed(1)
    size = tokenizer.get_vocab_size()
    model = GPT(GPTConfig(vocab=size, end=tokenizer.token_to_id("<|endoftext|>"), **{**SIZES, **RATES, **settings}))
    directory.save(path, model, tokenizer)
    return path


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_byte_bpe([text for text, _ in rows(300)], 300)


@pytest.fixture(scope="module")
def gpt(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("models") / "gpt2", tokenizer)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "texts", train=rows(100), val=rows(20, 100), test=rows(30, 200))


def tuned(data: Path, gpt: Path, out: Path, recipe: str = "single-sentence", **settings: Any) -> dict[str, Any]:
    common = {**SMALL, "data": str(data), "training.learning_rate": 0.01, "training.epochs": 8, "batch_items": 10}
    return train(recipe, {**common, "training.warmup": 5, **settings}, out=out, init=str(gpt))


def test_special_tokens_are_added_around_texts_and_pairs(tokenizer: Tokenizer) -> None:
    reading = add_classifier_tokens(tokenizer)
    assert reading.encode("great plot").tokens == [START, *tokenizer.encode("great plot").tokens, EXTRACT]
    first, second = (tokenizer.encode(text).tokens for text in ("it was", " great"))
    pair = reading.encode("it was", " great")
    assert pair.tokens == [START, *first, DELIMITER, *second, EXTRACT]
    assert set(pair.type_ids) == {0}
    assert [reading.token_to_id(mark) for mark in SPECIAL_TOKENS] == [300, 301, 302]
    assert [tokenizer.token_to_id(mark) for mark in SPECIAL_TOKENS] == [None] * 3, "the tokenizer itself is left alone"
    assert add_classifier_tokens(reading).to_str() == reading.to_str()
    assert reading.encode(EXTRACT).ids.count(302) == 1, "what spells a mark is text"
    cut = encode(reading, ["it was", "red " * 30], ["great " * 30, "blue"], 12, truncate=True)
    assert [(ids[0], ids[-1], len(ids)) for ids in cut.ids] == [(300, 302, 12)] * 2


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_texts_are_learned_saved_and_opened_by_transformers(
    norm: str, data: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    start = made(tmp_path / "start", tokenizer, norm=norm)
    run = tmp_path / "run"
    result = tuned(data, start, run, names=["bad", "good"])
    assert result["metrics"]["accuracy"]["value"] > 0.9
    classifier = manyheads.load(run)
    assert evaluate(classifier)["accuracy"] == result["metrics"]["accuracy"]
    kind = {"pre": "GPT2", "post": "OpenAIGPT"}[norm]
    assert json.loads((run / "config.json").read_text())["architectures"] == [f"{kind}ForSequenceClassification"]
    texts = [GOOD, BAD, "the plot", f"{GOOD} {BAD}"]
    ours = [
        {each.label: each.probability for each in labels} for labels in classifier.classify(texts, top=2)
    ]  # in one batch
    theirs, their_tokenizer = (
        AutoModelForSequenceClassification.from_pretrained(run),
        AutoTokenizer.from_pretrained(run),
    )
    for side in ("right", "left"):
        their_tokenizer.padding_side = side
        inputs = their_tokenizer(texts, padding=True, return_tensors="pt")
        assert "token_type_ids" not in inputs
        positions = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        shares = theirs(**inputs, position_ids=positions).logits.softmax(-1).tolist()
        for one, row in zip(ours, shares, strict=True):
            assert [one["bad"], one["good"]] == pytest.approx(row, abs=1e-5), side
    padded = json.loads((run / "tokenizer.json").read_text())
    padded["padding"] = {
        "strategy": {"Fixed": 40}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 299, "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }  # fmt: skip
    (run / "tokenizer.json").write_text(json.dumps(padded))
    again = [{each.label: each.probability for each in ls} for ls in manyheads.load(run).classify(texts, top=2)]
    assert again == ours, "padding that a tokenizer asks for does not matter"


def test_pairs_support_all_verbs(
    gpt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(tmp_path / "pairs", pairs=True, train=rows(400, 300), val=rows(20, 100), test=rows(30, 200))
    run = tmp_path / "run"
    result = tuned(data, gpt, run, "sentence-pair", auxiliary=0.5)
    assert result["metrics"]["f1"]["value"] > 0.9
    assert result["overrides"]["auxiliary"] == 0.5
    capsys.readouterr()
    assert cli.main(["evaluate", str(run)]) == 0
    assert f"{result['metrics']['accuracy']['value']:.4f}"[:5] in capsys.readouterr().out
    assert cli.main(["classify", str(run), GOOD, "--pair", "it was"]) == 0
    assert capsys.readouterr().out.startswith("1\t")
    monkeypatch.setattr("manyheads.cli.lines.stdin", lambda: iter([[f"{GOOD}\tit was", f"{BAD}\tit was"]]))
    assert cli.main(["classify", str(run)]) == 0
    assert [line[0] for line in capsys.readouterr().out.splitlines()] == ["1", "0"]
    with pytest.raises(ValueError, match="this model reads pairs"):
        manyheads.load(run).classify("alone")
    service = service_of(Settings({"m": str(run)}))

    async def ask_without_pairs(ask: Ask) -> Any:
        return await ask(texts=["alone"], model="m")

    assert (
        "m reads pairs: expected two lists of equal length, texts and pairs"
        in asked_of(service, ask_without_pairs).text
    )
    maps = manyheads.load(run).attend(GOOD, "it was")
    layer = maps["self"][1]
    assert maps.stepwise == ("self",)
    assert [token for token in layer.queries.tokens if token in SPECIAL_TOKENS] == [START, DELIMITER, EXTRACT]
    assert not layer.weights[0].swapaxes(0, 1)[0, :, 1:].any(), "no token looks ahead"
    assert layer.weights[0, :, -1].all(), "the last one looks at all"
    assert cli.main(["attend", str(run), GOOD, "--pair", "it was", "--out", str(tmp_path / "a.png")]) == 0
    assert cli.main(["generate", str(run), "the"]) == 2
    again = tuned(data, run, tmp_path / "again", "sentence-pair", **ONCE)
    assert again["parameters"] == result["parameters"], "the marks are there already"


def test_the_auxiliary_loss_equals_the_language_models(tokenizer: Tokenizer, gpt: Path) -> None:
    """L3 = L2 + lambda L1 (Radford 2018, equation 5), of a batch whose texts differ in length."""
    reading = add_classifier_tokens(tokenizer)
    torch.manual_seed(2)
    model = GPT(GPTConfig(vocab=303, end=299, head="sequence", labels=("a", "b"), pad=299, **SIZES, **RATES))
    held = Labeled(["the film was great", "awful", "we saw a plot"], ["a", "b", "a"])
    losses = []
    for share in (0.0, 0.5):
        task = ClassificationObjective(
            model, reading, held, held, compute=prepare(threads=1), batch_tokens=1000, batch_items=None, max_length=64,
            truncate=False, seed=1, auxiliary=share, target=Target("classes", ("a", "b")),
        )  # fmt: skip
        (batch,) = task.batches(0)
        losses.append(task.loss(batch).scaled(batch.counts))
    plain, words, labels = [], [], batch.labels.tolist()
    for ids, length, label in zip(batch.ids, batch.lengths, labels, strict=True):
        row = ids[None, :length]
        states = model.hidden(row)
        plain.append(F.cross_entropy(states[:, -1] @ model.classifier.weight.T, torch.tensor([label])))  # type: ignore[union-attr]
        words += [*F.cross_entropy((states @ model.embedding.weight.T)[0, :-1], row[0, 1:], reduction="none")]
    torch.testing.assert_close(losses[0], sum(plain), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(losses[1], sum(plain) + 0.5 * 3 * sum(words) / len(words), rtol=1e-5, atol=1e-5)
    losses[1].backward()
    assert model.embedding.weight.grad is not None


def test_a_model_without_an_end_token_is_padded_safely(data: Path, tmp_path: Path) -> None:
    characters = train_character([text for text, _ in rows(300)])
    start = made(tmp_path / "start", characters)
    model = directory.load(start).model
    model.config = GPTConfig(**{**vars(model.config), "end": None})
    directory.save(start, model, characters)
    tuned(data, start, tmp_path / "run", **ONCE)
    loaded = directory.load(tmp_path / "run")
    assert loaded.tokenizer is not None
    assert loaded.model.config.pad == loaded.tokenizer.token_to_id(START)


def test_settings_without_any_effect_are_refused(data: Path, gpt: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tuned: selects the layers of a BERT, but .* is a GPT"):
        tuned(data, gpt, tmp_path / "a", tuned="last")
    with pytest.raises(ValueError, match="auxiliary: no effect without a model to start from"):
        train("text-classification", {"auxiliary": 0.5}, out=tmp_path / "b")
    with pytest.raises(ValueError, match="tokens: determined by the initial model"):
        tuned(data, gpt, tmp_path / "c", tokens="words")
    planned = train("single-sentence", {}, out=tmp_path / "d", init=str(gpt), dry_run=True)
    assert planned["model"]["head"] == "sequence"
    tuned(data, gpt, tmp_path / "new", scratch=True, **{**ONCE, "training.learning_rate": 1e-9})
    before, after = (directory.load(path).model.embedding.weight for path in (gpt, tmp_path / "new"))
    assert (after[:300] - before).abs().max() > 0.01

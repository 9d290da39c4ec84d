"""Ensembles: one model several times equals itself, and several models equal the mean of their log-probabilities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import manyheads
from manyheads import cli, directory
from manyheads.data.text.tokenizers import train_bpe
from manyheads.errors import UserError
from manyheads.export.average import average
from manyheads.models.presets import build, preset
from manyheads.tasks.translation.predictor import Translator

TEXTS = ["the cat sat", "a dog", "the dog and the cat sat on a mat", ""]
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer": ("transformer/tiny", {"max_positions": 36, "encoder_layers": 1, "decoder_layers": 1}),
    "universal": ("universal/tiny", {"max_positions": 24, "tie": "target", "feed_forward": 32, "steps": 2}),
    "lstm": ("seq2seq-rnn/tiny", {"max_positions": 32}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of three families with one vocabulary, and a model with another vocabulary."""
    out = tmp_path_factory.mktemp("models")
    for seed, (name, words) in enumerate([*((name, TEXTS) for name in MODELS), ("other", ["other words"])]):
        family, settings = MODELS.get(name, MODELS["transformer"])
        tokenizer = train_bpe(words, 27 if words == TEXTS else 12)
        size, end, pad = tokenizer.get_vocab_size(), tokenizer.token_to_id("</s>"), tokenizer.token_to_id("<pad>")
        sizes = {"source_vocab": size, "target_vocab": size, "pad": pad, "end": end, "start": pad, "source_pad": pad}
        torch.manual_seed(seed)
        model = build(preset(family, **sizes, **{"width": 32, "tie": "none", **settings}))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2)
        directory.save(out / name, model, tokenizer)
    return out


def load(folder: Path, *names: str) -> Translator:
    first, *others = (manyheads.load(folder / name) for name in names)
    joined: Translator = first.with_ensemble(others) if others else first
    return joined


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "options",
    [
        {"beam": 1}, {"beam": 4, "nbest": 3}, {"temperature": 1.0, "seed": 3, "nbest": 2},
        {"beam": 6, "force": "mat", "no_repeat": 3},
    ],
    ids=["greedy", "n-best", "sampling", "forced"],
)  # fmt: skip
def test_one_model_three_times_is_itself(folder: Path, name: str, options: dict[str, Any]) -> None:
    options = dict(options)
    count = options.pop("nbest", 1)
    alone, three = (load(folder, *names).nbest(TEXTS, count, **options) for names in ([name], [name] * 3))
    for one, other in zip(alone, three, strict=True):
        assert [t.text for t in one] == [t.text for t in other]
        assert [t.score for t in one] == pytest.approx([t.score for t in other], abs=1e-5)


def mean_scores(ensemble: Translator, source: str, target: list[int]) -> Tensor:
    """Log-probabilities (T, V) of the next token after each prefix of a target: a plain mean, renormalized."""
    scores = []
    for model in (ensemble.model, *(other.model for other in ensemble.others)):
        c = model.config
        with torch.inference_mode():
            ids = torch.tensor([ensemble.tokenizer.encode(source).ids])
            logits = model(ids, torch.tensor([ids.shape[1]]), torch.tensor([[c.start, *target]]))[0]
            logits[:, c.pad] = -torch.inf
            scores.append(logits.log_softmax(-1))
    return torch.stack(scores).mean(0).log_softmax(-1)


@pytest.mark.parametrize("names", [("transformer", "lstm"), ("lstm", "universal", "transformer")])
def test_several_models_are_the_mean_of_their_log_probabilities(folder: Path, names: tuple[str, ...]) -> None:
    ensemble = load(folder, *names)
    end = ensemble.model.config.end
    target = ensemble.target_tokenizer.encode("the mat").ids[:-1]
    (scored,) = ensemble.score(["the cat sat"], ["the mat"])
    expected = mean_scores(ensemble, "the cat sat", target)[range(len(target) + 1), [*target, end]].sum()
    assert scored.log_probability == pytest.approx(expected.item(), abs=1e-4)
    singles = [load(folder, name).score(["the cat sat"], ["the mat"])[0].log_probability for name in names]
    assert scored.log_probability not in singles

    written, limit = list[int](), ensemble.model.config.max_positions - 1
    while (token := int(mean_scores(ensemble, "a dog", written)[-1].argmax())) != end and len(written) < limit:
        written.append(token)
    assert ensemble.translate("a dog", beam=1) == ensemble.target_tokenizer.decode(written)
    (best, *_), (again,) = ensemble.nbest(["a dog"], 4, beam=4), ensemble.nbest(["a dog"], 1, beam=4)
    assert best[0] == again[0]


def test_a_path_is_no_translator(folder: Path) -> None:
    with pytest.raises(ValueError, match="'x': expected a (list|translator)"):
        load(folder, "transformer").with_ensemble("x")  # type: ignore[arg-type]


def test_models_of_another_direction_are_refused(folder: Path, tmp_path: Path) -> None:
    for name, source, target in (("en-de", "en", "de"), ("de-en", "de", "en")):
        kept = tmp_path / name / "kept" / "epoch-1"
        for out in (tmp_path / name, kept):
            directory.load(folder / "transformer").save(out)
        (tmp_path / name / "result.json").write_text(json.dumps({"data": {"source": source, "target": target}}))
    with pytest.raises(UserError, match="de-en translates from de to en, but .*en-de from en to de"):
        load(tmp_path, "en-de", "de-en")
    for part in ("", "kept/epoch-1"):
        with pytest.raises(UserError, match="translates from de to en, but .* from en to de: expected checkpoints"):
            average([tmp_path / "en-de" / part, tmp_path / "de-en" / part], tmp_path / "mean")
    assert average([tmp_path / "en-de", tmp_path / "en-de/kept/epoch-1"], tmp_path / "mean")


def test_models_that_began_with_other_weights_have_no_mean(folder: Path, tmp_path: Path) -> None:
    for seed, init in ((1, None), (2, None), (3, "runs/base")):
        directory.load(folder / "transformer").save(tmp_path / str(seed))
        record = {"data": {"source": "en", "target": "de"}, "seed": seed, "init": init}
        (tmp_path / str(seed) / "result.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"began with other random weights .*seeds 2 and 1"):
        average([tmp_path / "1", tmp_path / "2"], tmp_path / "mean")
    assert average([tmp_path / "3", tmp_path / "2"], tmp_path / "mean")  # models fine-tuned from one model have a mean


def test_the_shortest_limit_counts(folder: Path) -> None:
    pair = load(folder, "transformer", "universal")
    with pytest.raises(ValueError, match="the model takes 24"):
        pair.translate("the cat " * 20)
    assert load(folder, "transformer").model.config.max_positions == 36
    assert pair.attend("the cat", "a dog")["cross"][0].weights.ndim == 4


def test_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(verb: str, model: str, *words: str) -> tuple[int, str, str]:
        status = cli.main([verb, str(folder / model), *words])
        return status, *capsys.readouterr()

    pair = load(folder, "transformer", "lstm")
    lstm = str(folder / "lstm")
    status, found, _ = run("translate", "transformer", "a dog", "--ensemble", lstm)
    assert (status, found.rstrip("\n")) == (0, pair.translate("a dog"))
    for side in ("en", "de"):
        (folder / f"test.{side}").write_text("a dog\nthe cat\n")
    files = f"{folder / 'test.en'},{folder / 'test.de'}"
    status, found, told = run("evaluate", "transformer", "--ensemble", lstm, "--data", files, "--json")
    assert status == 0, told
    document = json.loads(found)
    assert document["ensemble"] == [lstm]
    assert document["metrics"] == json.loads(json.dumps(pair.outcome(files).metrics))
    status, _, told = run("translate", "transformer", "a dog", "--ensemble", str(folder / "other"))
    assert status == 2
    assert told.count("\n") == 1
    assert "its vocabulary differs from that of" in told

"""Universal Transformer in the translation recipe: learning, saving, and equal output of all decoding methods."""

from pathlib import Path

import pytest
import torch

import manyheads
from manyheads.core.runtime import prepare
from manyheads.data.text.store import TokenStore
from manyheads.data.text.tokenizers import train_bpe
from manyheads.models.presets import build, preset
from manyheads.tasks.train import train
from manyheads.tasks.translation.objective import Corpus, TranslationObjective
from tests.contracts.tasks.translation.test_run import SMALL, lines


def translates_text(corpus: Path, tmp_path: Path, halting: str) -> None:
    """Train a model, and try all that a Universal Transformer promises."""
    sizes = {"width": 32, "heads": 2, "feed_forward": 64, "steps": 3, "norm": "pre", "dropout": 0.0, "halting": halting}
    settings = {name: SMALL[name] for name in SMALL if not name.startswith("model.")} | {"preset": "universal/tiny"}
    settings |= {f"model.{name}": value for name, value in sizes.items()}
    settings |= {"data": str(corpus), "training.steps": 300, "training.learning_rate": 5e-3}
    assert train("translation", settings, out=tmp_path / "run", dry_run=True)["estimate"]["flops_per_token"] > 0
    result = train("translation", settings, out=tmp_path / "run")
    assert result["metrics"]["exact_match"]["value"] > 0.9
    assert ("decoder_steps" in result["metrics"]) == (halting != "fixed")
    translator = manyheads.load(tmp_path / "run")
    assert translator.family == "manyheads-universal"
    translator.model.double()
    sources, targets = lines(corpus / "test.en")[:6], lines(corpus / "test.de")[:6]
    for beam in (1, 4):
        together = translator.translate(sources, beam=beam)
        assert together == [translator.translate(source, beam=beam) for source in sources]
    source, target = sources[0], targets[0]
    # greedy with the cache is the likeliest token after token without it
    ids = torch.tensor([translator.tokenizer.encode(source).ids])
    written = [translator.model.config.start]
    while written[-1] != translator.model.config.end and len(written) < 30:
        logits = translator.model(ids, None, torch.tensor([written]))[0, -1]
        logits[[translator.model.config.pad]] = -torch.inf
        written.append(int(logits.argmax()))
    assert translator.target_tokenizer.decode(written[1:-1]) == translator.translate(source, beam=1)
    maps = manyheads.load(tmp_path / "run").attend(source, target).axes
    taken = {name: len(layers) for name, layers in maps.items()}  # one map per computed step
    assert set(taken) == {"encoder", "decoder", "cross"}
    assert set(taken.values()) == {3} if halting == "fixed" else max(taken.values()) <= 3
    tuned = {"data": str(corpus), "threads": 1, "training.steps": 1, "training.learning_rate": 1e-9}
    again = train("translation", tuned, out=tmp_path / "tuned", init=str(tmp_path / "run"))
    assert again["metrics"]["exact_match"] == result["metrics"]["exact_match"]


def test_mean_steps_cover_all_positions_for_any_batches(tmp_path: Path) -> None:
    """The mean number of steps covers all positions, for long sources with short targets and for short ones with long
    targets.
    """
    sources, targets = ["a b c d e f g h i j", "b"] * 4, ["c", "d e f g h i j a b c"] * 4
    tokenizer = train_bpe(sources + targets, 40)
    size, end = tokenizer.get_vocab_size(), tokenizer.token_to_id("</s>")
    torch.manual_seed(1)
    model = build(preset("universal/tiny", source_vocab=size, target_vocab=size, pad=size - 1, start=size - 1, end=end,
                         width=16, heads=2, feed_forward=16, steps=6, dropout=0.0, halting="basic"))  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    source, target = (TokenStore.of(texts, tokenizer, tmp_path / "tokens") for texts in (sources, targets))
    corpus = Corpus(source, target, 64)
    whole, parts = (
        TranslationObjective(
            model, tokenizer, None, corpus, corpus, compute=prepare(threads=1), batch_tokens=most, smoothing=0.0,
            seed=1,
        ).validate()
        for most in (1000, 11)
    )  # fmt: skip
    assert 1.5 < whole["encoder_steps"] < 5.5
    assert parts == pytest.approx(whole, rel=1e-5)

"""Directories of the Universal Transformer and its baseline: saved models are loaded again and can be used."""

from pathlib import Path
from typing import Any

import pytest
import torch

import manyheads
from manyheads import directory
from manyheads.analysis import costs
from manyheads.analysis.costs import example
from manyheads.core.config import Config
from manyheads.core.interface import Model
from manyheads.data.text.tokenizers import train_bpe
from manyheads.models.seq2seq_rnn import Seq2SeqRNN, Seq2SeqRNNConfig
from manyheads.models.universal import Universal, UniversalConfig, UniversalSequence, UniversalSequenceConfig
from papers.universal.digit_strings import digit_tokenizer

SMALL: dict[str, Any] = {"width": 16, "steps": 3, "heads": 2, "feed_forward": 24, "max_positions": 40, "dropout": 0.0}
TOKENS: dict[str, Any] = {"pad": 13, "end": 0, "start": 13}
BOTH: dict[str, Any] = {"source_vocab": 14, "target_vocab": 14, **TOKENS}


def models() -> dict[str, Model[Config]]:
    torch.manual_seed(0)
    learned: dict[str, Any] = {"timing": "learned", "norm": "pre", "halting": "accumulated", "halting_bias": 0.5}
    return {
        "fixed": Universal(UniversalConfig(**SMALL, **BOTH)),
        "adaptive": Universal(UniversalConfig(**SMALL, **BOTH, **learned, transition="separable", epsilon=0.1)),
        "decoder": UniversalSequence(UniversalSequenceConfig(**SMALL, vocab=14, halting="basic", end=0)),
        "encoder": UniversalSequence(UniversalSequenceConfig(**SMALL, vocab=14, head="encoder")),
        "lstm": Seq2SeqRNN(Seq2SeqRNNConfig(width=16, **BOTH)),
    }


@pytest.mark.parametrize("name", models())
def test_a_directory_reloads_identically(tmp_path: Path, name: str) -> None:
    model: Any = models()[name].eval()
    assert directory.save(tmp_path, model, digit_tokenizer()).startswith("manyheads-")
    again = directory.load(tmp_path)
    assert again.model.config == model.config
    inputs = [tokens if tokens is None else tokens + torch.arange(tokens.shape[1]) for tokens in example(model, 5)]
    torch.testing.assert_close(again.model(*inputs), model(*inputs), rtol=0, atol=0)
    for (one, mine), (other, theirs) in zip(model.state_dict().items(), again.model.state_dict().items(), strict=True):
        assert one == other
        assert torch.equal(mine, theirs)


@pytest.mark.filterwarnings("ignore:vocabulary=")
def test_two_vocabularies_stay_separate(tmp_path: Path) -> None:
    texts = (["one two three"], ["eins zwei drei vier"])
    source, target = (train_bpe(each, n, min_frequency=9) for each, n in zip(texts, (12, 14), strict=True))
    sizes: dict[str, Any] = {
        "source_vocab": source.get_vocab_size(),
        "target_vocab": target.get_vocab_size(),
        "tie": "target",
    }
    tokens: dict[str, Any] = {"pad": target.token_to_id("<pad>"), "end": 0, "start": target.token_to_id("<pad>")}
    model = Universal(UniversalConfig(**SMALL, **sizes, **tokens, source_pad=source.token_to_id("<pad>")))
    assert directory.save(tmp_path, model, source, target) == "manyheads-universal"
    loaded = directory.load(tmp_path)
    assert loaded.tokenizer is not None
    assert loaded.target_tokenizer is not None
    assert loaded.target_tokenizer.get_vocab() == target.get_vocab() != loaded.tokenizer.get_vocab()


@pytest.mark.parametrize("name", ["adaptive", "lstm"])
def test_universal_translation_uses_the_common_search(tmp_path: Path, name: str) -> None:
    directory.save(tmp_path, models()[name], digit_tokenizer())
    translator = manyheads.load(tmp_path)
    texts = ["123", "", "98765"]
    assert translator.translate(texts, beam=1) == [translator.translate(text, beam=1) for text in texts]
    best = translator.nbest(texts, 3, beam=3)
    assert [len(found) for found in best] == [3, 1, 3]
    scored = translator.score(texts, [found[0].text for found in best])
    for given, found in zip(scored, best, strict=True):
        assert given.log_probability == pytest.approx(found[0].log_probability, abs=1e-4)


def test_a_decoder_generates_and_an_encoder_refuses(tmp_path: Path) -> None:
    for name in ("decoder", "encoder"):
        directory.save(tmp_path / name, models()[name], digit_tokenizer())
    generator = manyheads.load(tmp_path / "decoder")
    texts = generator.generate(["12", "3"], max_tokens=6, temperature=0)
    assert texts == [generator.generate(text, max_tokens=6, temperature=0) for text in ("12", "3")]
    with pytest.raises(ValueError, match="head 'encoder' makes no predictions by itself"):
        manyheads.load(tmp_path / "encoder")


def test_a_damaged_setting_is_rejected(tmp_path: Path) -> None:
    directory.save(tmp_path, models()["fixed"], digit_tokenizer())
    config = tmp_path / "config.json"
    whole = config.read_text()
    for before, after, message in (
        ('"steps": 3', '"steps": 3000000', "steps'? is 3000000: expected "),
        ('"halting": "fixed"', '"halting": "sometimes"', "halting is 'sometimes': expected one of"),
    ):
        assert before in whole
        config.write_text(whole.replace(before, after))
        with pytest.raises(ValueError, match=message):
            directory.load(tmp_path)


def test_costs_of_recurrence_are_counted() -> None:
    """Twice the steps are twice the operations of the blocks, and twice the cache, with the same parameters."""
    once, twice = (
        costs.summary(Universal(UniversalConfig(**{**SMALL, "steps": n}, **BOTH, halting="basic")), 5, 4)
        for n in (3, 6)
    )
    assert once["parameters"]["total"] == twice["parameters"]["total"]
    blocks = [name for name in once["flops"]["parts"] if ".block." in name and ".cross.key" not in name]
    assert len(blocks) > 5
    for name in blocks:
        assert twice["flops"]["parts"][name] == 2 * once["flops"]["parts"][name]
    assert once["memory"]["cache_per_token"] == 3 * 2 * 16 * 4
    assert twice["memory"]["cache_per_token"] == 2 * once["memory"]["cache_per_token"]
    assert once["memory"]["cache_per_source_token"] == 2 * 16 * 4
    assert costs.summary(costs.preset_model("universal/base"))["parameters"]["non_embedding"] == 29_392_896

"""Directories of our text classifiers: every saved tensor and setting is loaded again."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from manyheads import directory
from manyheads.core.config import Config
from manyheads.core.interface import Model
from manyheads.data.text.tokenizers import train_word_level, train_wordpiece
from manyheads.models.bert_features import BertFeatures, BertFeaturesConfig
from manyheads.models.presets import preset
from manyheads.models.sequence_baselines import SequenceBaseline
from manyheads.models.text_classifier import TextClassifier
from manyheads.models.tfidf import Tfidf, TfidfConfig

TEXTS = ["one two three", "two four", "five six"]
SIZES: dict[str, Any] = {"vocab": 40, "labels": ("a", "b", "c"), "max_positions": 16}


def models() -> dict[str, Model[Config]]:
    torch.manual_seed(1)
    bert: dict[str, Any] = {"width": 8, "layers": 2, "heads": 2, "feed_forward": 8, "head": "sequence"}
    return {
        "textbook": TextClassifier(preset("text-classifier/textbook", **SIZES)),
        "corrected": TextClassifier(preset("text-classifier/corrected", **SIZES, pooling="mean")),
        "conv2d": SequenceBaseline(preset("sequence-baseline/conv2d", **SIZES)),
        "lstm": SequenceBaseline(preset("sequence-baseline/lstm", **SIZES)),
        "tfidf": Tfidf(TfidfConfig(vocab=40, labels=("a", "b", "c"))),
        "features": BertFeatures(BertFeaturesConfig(**SIZES, **bert, read=2, hidden=4)),
    }


@pytest.mark.parametrize("name", models())
@pytest.mark.filterwarnings("ignore:vocabulary=")
def test_a_directory_reloads_identically(tmp_path: Path, name: str) -> None:
    model = models()[name].eval()
    tokenizer = (train_wordpiece if name == "features" else train_word_level)(TEXTS, 35)
    assert directory.save(tmp_path / "m", model, tokenizer).startswith("manyheads-")
    loaded = directory.load(tmp_path / "m")
    assert type(loaded.model) is type(model)
    assert loaded.model.config == model.config
    before, after = model.state_dict(), loaded.model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[key], after[key]) for key in before)
    tokens = torch.randint(1, 40, (3, 7))
    assert torch.equal(model(tokens), loaded.model(tokens))
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.encode("two zebras").ids == tokenizer.encode("two zebras").ids


def test_a_damaged_configuration_is_reported(tmp_path: Path) -> None:
    directory.save(tmp_path, models()["corrected"], None)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, message in (
        ({"masked": "yes"}, "masked is 'yes': expected true or false"),
        ({"labels": "a"}, "labels is 'a': expected a list"),
        ({"labels": ["a", "a"]}, "expected a list of at least 2 distinct names"),
        ({"width": 16}, "misshapen"),
        ({"new": 1}, "unknown key 'new'"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ValueError, match=message):
            directory.load(tmp_path)


def test_frozen_features_equal_berts_states(tmp_path: Path) -> None:
    from manyheads.core.masks import Mask

    model = models()["features"]
    assert isinstance(model, BertFeatures)
    model.train()
    tokens, lengths = torch.randint(1, 40, (4, 9)), torch.tensor([9, 4, 1, 6])
    model(tokens, lengths).sum().backward()
    learns = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
    assert not any(name.startswith("bert.") for name in learns)
    assert {name for name, _ in model.named_parameters() if not name.startswith("bert.")} == learns
    seen: list[torch.Tensor] = []
    model.mixer.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    model(tokens, lengths)
    last = model.bert.encoder(model.bert.embed(tokens), mask=Mask(key_lengths=lengths))  # without dropout, in training
    assert torch.allclose(seen[0][..., -8:], last, atol=1e-6)
    assert seen[0].shape == (4, 9, 16)
    alone = torch.cat([model.eval()(row[None, :n]) for row, n in zip(tokens, lengths, strict=True)])
    assert torch.allclose(model(tokens, lengths), alone, atol=1e-5)

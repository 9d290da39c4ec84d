"""Parity of GPT and GPT-2 text classifiers with transformers: both directions, in padded batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    OpenAIGPTConfig,
    OpenAIGPTForSequenceClassification,
)

from manyheads import directory
from manyheads.models.adapt import adapt
from manyheads.models.gpt import GPT
from tests.contracts.interop.test_gpt import SIZES, V, ours, randomize

PAD, LABELS = 46, ("no", "maybe", "yes")
CLASSES: dict[str, tuple[Any, Any]] = {
    "gpt2": (GPT2ForSequenceClassification, GPT2Config),
    "openai-gpt": (OpenAIGPTForSequenceClassification, OpenAIGPTConfig),
}


def batch() -> tuple[Tensor, Tensor]:
    """Return tokens (B, T) without padding tokens, and lengths (B,)."""
    lengths = torch.tensor([11, 4, 7, 1])
    tokens = torch.randint(PAD, (4, 11), generator=torch.Generator().manual_seed(1))
    return tokens.masked_fill(torch.arange(11) >= lengths[:, None], PAD), lengths


def moved_right(rows: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([row.roll(len(row) - int(n)) for row, n in zip(rows, lengths, strict=True)])


def assert_same(model: GPT, other: Any) -> None:
    """Compare the gradients, and the logits with padding on the right, on the left, and of each text alone."""
    tokens, lengths = batch()
    real = (torch.arange(11) < lengths[:, None]).long()
    logits = model.eval()(tokens, lengths)
    assert logits.shape == (4, len(LABELS))
    assert logits.std() > 0.1
    expected = other.eval()(input_ids=tokens, attention_mask=real).logits
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    left, mask = moved_right(tokens, lengths), moved_right(real, lengths)
    from_left = other(input_ids=left, attention_mask=mask, position_ids=(mask.cumsum(-1) - 1).clamp(min=0)).logits
    torch.testing.assert_close(logits, from_left, rtol=1e-5, atol=1e-5)
    for row, length, together in zip(tokens, lengths, logits, strict=True):
        alone = row[None, :length]
        torch.testing.assert_close(model(alone)[0], together, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(other(input_ids=alone).logits[0], together, rtol=1e-5, atol=1e-5)
    weight = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
    for each in (logits, expected):
        (each * weight).sum().backward()
    assert model.classifier is not None
    torch.testing.assert_close(model.classifier.weight.grad, other.score.weight.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", CLASSES)
def test_transformers_opens_our_models(tmp_path: Path, kind: str) -> None:
    model = ours(kind, head="sequence", labels=LABELS, pad=PAD)
    assert directory.save(tmp_path, model) == kind
    assert not (tmp_path / "generation_config.json").exists()
    found: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    other, info = found
    assert not any(info.values()), info
    assert type(other) is CLASSES[kind][0]
    assert other.config.id2label == dict(enumerate(LABELS))
    assert_same(model, other)
    again = directory.load(tmp_path).model
    assert again.config == model.config
    assert torch.equal(again(*batch()), model(*batch()))


@pytest.mark.parametrize("kind", CLASSES)
def test_transformers_models_open_and_export_again(tmp_path: Path, kind: str) -> None:
    made, config = CLASSES[kind]
    names = {"id2label": dict(enumerate(LABELS)), "label2id": {name: i for i, name in enumerate(LABELS)}}
    torch.manual_seed(0)
    other = randomize(made(config(**SIZES, **names, pad_token_id=PAD)))
    other.save_pretrained(tmp_path / "theirs")
    model = directory.load(tmp_path / "theirs").model
    assert (model.config.head, model.config.labels, model.config.pad) == ("sequence", LABELS, PAD)
    assert_same(model, other)
    directory.save(tmp_path / "again", model)
    files = [load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "again")]
    assert set(files[0]) == set(files[1])
    assert all(torch.equal(files[0][name], files[1][name]) for name in files[0])


def test_without_a_padding_token_texts_are_batched_safely(tmp_path: Path) -> None:
    torch.manual_seed(0)
    other = randomize(GPT2ForSequenceClassification(GPT2Config(**{**SIZES, "num_labels": 3}))).eval()
    other.save_pretrained(tmp_path)
    model = directory.load(tmp_path).model.eval()
    assert (model.config.labels, model.config.pad) == (("LABEL_0", "LABEL_1", "LABEL_2"), None)
    tokens, lengths = batch()
    with pytest.raises(ValueError, match="no padding token"):
        other(input_ids=tokens)
    for row, length, logits in zip(tokens, lengths, model(tokens, lengths), strict=True):
        torch.testing.assert_close(other(input_ids=row[None, :length]).logits[0], logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"id2label": {"0": "score"}, "label2id": {"score": 0}, "problem_type": "single_label_classification"},
            "the head 'sequence' has 1 labels",
        ),
        ({"problem_type": "regression"}, "'problem_type' is 'regression' for"),
        ({"pad_token_id": V}, f"pad is {V}: expected"),
        ({"architectures": ["GPT2LMHeadModel"]}, "unexpected: score.weight"),
    ],
)
def test_unrepresentable_models_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    directory.save(tmp_path, ours("gpt2", head="sequence", labels=LABELS, pad=PAD))
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    with pytest.raises(ValueError, match=message) as caught:
        directory.load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_new_head_and_new_tokens_keep_other_weights() -> None:
    model = ours("gpt2")
    adapted, new = adapt(model, head="sequence", labels=LABELS, vocab=V + 3, pad=PAD)
    assert new == ["classifier.weight"]
    assert torch.equal(adapted.embedding.weight[:V], model.embedding.weight)
    assert 0.005 < adapted.embedding.weight[V:].std() < 0.05
    tokens = batch()[0]
    assert torch.equal(adapted.hidden(tokens), model.hidden(tokens))
    back, new = adapt(adapted, head="language", labels=(), pad=None)
    assert new == []
    assert torch.equal(back(tokens)[..., :V], model(tokens))

"""Regression and multi-label models of transformers: parity of the logits, and directories that open both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from manyheads import directory

TEXT: dict[str, Any] = {"vocab_size": 50, "pad_token_id": 0}
LAYERS: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
}  # fmt: skip
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "Bert": ("ForSequenceClassification", {**TEXT, **LAYERS}),
    "DistilBert": ("ForSequenceClassification", {**TEXT, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}),
    "GPT2": (
        "ForSequenceClassification",
        {**TEXT, "n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": 1, "eos_token_id": 1},
    ),
    "ViT": ("ForImageClassification", {**LAYERS, "image_size": 8, "patch_size": 4}),
    "ResNet": (
        "ForImageClassification",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
    ),
}


def outputs(name: str, theirs: Any, ours: Any) -> tuple[Tensor, Tensor]:
    if name in ("ViT", "ResNet"):
        images = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
        return theirs(pixel_values=images).logits, ours(images)
    tokens = torch.randint(2, 50, (2, 7), generator=torch.Generator().manual_seed(1))
    return theirs(input_ids=tokens).logits, ours(tokens, torch.tensor([7, 7]))


@pytest.mark.parametrize(
    ("labels", "problem", "target"),
    [(1, None, "regression"), (1, "regression", "regression"), (3, "multi_label_classification", "multi-label"),
     (3, None, "classes")],
)  # fmt: skip
@pytest.mark.parametrize("name", SMALL)
@torch.inference_mode()
def test_directories_open_both_ways(name: str, labels: int, problem: str | None, target: str, tmp_path: Path) -> None:
    head, sizes = SMALL[name]
    torch.manual_seed(1)
    config = getattr(transformers, f"{name}Config")(**sizes, num_labels=labels, problem_type=problem)
    theirs = getattr(transformers, name + head)(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = directory.load(tmp_path / "theirs").model
    assert ours.config.target == target
    torch.testing.assert_close(*outputs(name, theirs, ours), atol=1e-5, rtol=1e-5)
    directory.save(tmp_path / "ours", ours)
    again = getattr(transformers, name + head).from_pretrained(tmp_path / "ours").eval()
    torch.testing.assert_close(*outputs(name, again, ours), atol=1e-5, rtol=1e-5)
    expected = {"regression": "regression", "multi-label": "multi_label_classification", "classes": None}
    assert again.config.problem_type == expected[target]


def test_a_reranker_of_sentence_transformers_opens(tmp_path: Path) -> None:
    head, sizes = SMALL["Bert"]
    config = transformers.BertConfig.from_dict({**sizes, "num_labels": 1})
    getattr(transformers, f"Bert{head}")(config).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    added = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0"}}
    file.write_text(json.dumps(json.loads(file.read_text()) | added))
    assert directory.load(tmp_path).model.config.target == "regression"

"""A config.json that needs more memory than available is rejected before any allocation."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from manyheads import directory
from manyheads.interop.formats import FAMILIES
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.universal import Universal, UniversalConfig
from manyheads.models.vit import ViT, ViTConfig
from tests.support.reference import ours

TINY: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2, "feed_forward": 64}
SMALL: dict[str, Any] = {"vocab_size": 40, "num_hidden_layers": 1, "num_attention_heads": 2}
BERT: dict[str, Any] = {**SMALL, "hidden_size": 8, "intermediate_size": 8, "max_position_embeddings": 20}
IMAGES: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
                          "image_size": 4, "patch_size": 2}  # fmt: skip
TOKENS: dict[str, Any] = {"source_vocab": 9, "target_vocab": 9, "pad": 8, "end": 0, "start": 8}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "marian": lambda: ours("marian"),
    "pegasus": lambda: ours("pegasus"),
    "bert": lambda: transformers.BertModel(transformers.BertConfig(**BERT)),
    "roberta": lambda: transformers.RobertaModel(transformers.RobertaConfig(**BERT)),
    "distilbert": lambda: transformers.DistilBertModel(
        transformers.DistilBertConfig(vocab_size=40, dim=8, n_layers=1, n_heads=2, hidden_dim=8)
    ),
    "megatron-bert": lambda: transformers.MegatronBertModel(transformers.MegatronBertConfig(**BERT)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=40, n_embd=8, n_layer=1, n_head=2, n_positions=20, n_inner=9, eos_token_id=1)
    ),
    "openai-gpt": lambda: transformers.OpenAIGPTLMHeadModel(
        transformers.OpenAIGPTConfig(vocab_size=40, n_embd=8, n_layer=1, n_head=2, n_positions=20)
    ),
    "vit": lambda: transformers.ViTModel(transformers.ViTConfig(**IMAGES)),
    "deit": lambda: transformers.DeiTModel(transformers.DeiTConfig(**IMAGES)),
    "resnet": lambda: transformers.ResNetModel(
        transformers.ResNetConfig(embedding_size=4, hidden_sizes=[8, 8], depths=[1, 1])
    ),
    "efficientnet": lambda: transformers.EfficientNetModel(
        transformers.EfficientNetConfig(width_coefficient=0.1, depth_coefficient=0.1, hidden_dim=128)
    ),
    "regnet": lambda: transformers.RegNetModel(
        transformers.RegNetConfig(embedding_size=4, hidden_sizes=[8, 8], depths=[1, 1], groups_width=4)
    ),
    "bit": lambda: transformers.BitModel(
        transformers.BitConfig(embedding_size=4, hidden_sizes=[32, 32], depths=[1, 1], num_groups=4)
    ),
    "manyheads-universal": lambda: Universal(UniversalConfig(width=8, steps=1, heads=2, feed_forward=8, **TOKENS)),
}
NO_SIZES = ("num_labels", "id", "dropout", "transformers_version")


def most_held() -> int:
    """Return the peak memory of this process in kilobytes, since the last reset of the counter."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="the system cannot reset the peak memory counter"
)
@pytest.mark.parametrize("name", MODELS)
def test_sizes_beyond_memory_are_refused_at_once(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    model: Any = MODELS[name]()
    if isinstance(model, transformers.PreTrainedModel):
        model.save_pretrained(tmp_path)
    else:
        directory.save(tmp_path, model)
    directory.load(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    refused = 0
    for key, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int) or key.endswith("_id") or key in FAMILIES:
            continue
        for size in (10**9, 10**12):
            (tmp_path / "config.json").write_text(json.dumps({**settings, key: size}))
            Path("/proc/self/clear_refs").write_text("5")  # the most that it has held is what it holds now
            before, began = most_held(), time.process_time()
            lines = ["it opened"]
            try:
                directory.load(tmp_path)
            except ValueError as error:
                refused += 1
                lines = str(error).splitlines()
            taken = most_held() - before
            assert len(lines) == 1
            assert taken < 100_000, f"{key}={size} took {taken} kB"
            assert time.process_time() - began < 3, f"{key}={size}"
    assert refused >= 4


@pytest.mark.parametrize(
    "model",
    [
        lambda: Bert(BertConfig(vocab=30, **TINY, segment_types=None)),
        lambda: ViT(ViTConfig(image_size=8, patch=4, **TINY, labels=(), registers=3)),
    ],
    ids=["bert", "vit"],
)  # fmt: skip
def test_settings_unknown_to_transformers_are_saved_in_our_format(tmp_path: Path, model: Callable[[], Any]) -> None:
    """A null in a foreign config.json means the default."""
    saved = model()
    assert directory.save(tmp_path, saved, None).startswith("manyheads-")
    again = directory.load(tmp_path).model
    assert again.config == saved.config
    for name, tensor in saved.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)

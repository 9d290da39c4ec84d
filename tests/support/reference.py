"""Small random models of this package and of transformers, and calls of both with the same input."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel, PegasusConfig, PegasusForConditionalGeneration

from manyheads.data.text.tokenizers import train_bpe
from manyheads.generation import greedy
from manyheads.models.transformer import Transformer, TransformerConfig

M = TypeVar("M", bound=nn.Module)
SHAPES: dict[str, dict[str, Any]] = {
    "marian": {"norm": "post", "final_norm": False},
    "pegasus": {"norm": "pre", "final_norm": True},
}
SENTENCES = ["two men are walking a dog", "a dog, two cats: 42 paws", "zwei Männer führen einen Hund", "ein Hund läuft"]


@cache
def tokenizer() -> Tokenizer:
    return train_bpe(SENTENCES * 3, 60)


def ours(shape: str, *, noise: float = 0.2, **settings: Any) -> Transformer:
    """A random model of ours, with unequal sides, no dropout, every parameter moved away from its initial value."""
    size = settings.pop("vocabulary", tokenizer().get_vocab_size())
    sizes: dict[str, Any] = {
        "source_vocab": size, "target_vocab": size, "pad": size - 1, "end": 0, "start": size - 1, "width": 24,
        "encoder_layers": 2, "decoder_layers": 1, "encoder_heads": 3, "decoder_heads": 2, "encoder_feed_forward": 40,
        "decoder_feed_forward": 28, "max_positions": 50, "dropout": 0.0,
    }  # fmt: skip
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(**{**sizes, **SHAPES[shape], **settings}))
    return randomize(model, model.config.pad, noise)


def theirs(shape: str, **settings: Any) -> MarianMTModel | PegasusForConditionalGeneration:
    """Return a random model of transformers with unusual sizes."""
    sizes: dict[str, Any] = {
        "vocab_size": 50, "d_model": 36, "encoder_layers": 1, "decoder_layers": 3, "encoder_attention_heads": 3,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 50, "decoder_ffn_dim": 31, "max_position_embeddings": 41,
        "dropout": 0.0,
    }  # fmt: skip
    torch.manual_seed(0)
    if shape == "marian":
        ids = {"pad_token_id": 49, "decoder_start_token_id": 49, "eos_token_id": 0}
        return randomize(MarianMTModel(MarianConfig(**{**sizes, **ids, **settings})), 49)
    return randomize(PegasusForConditionalGeneration(PegasusConfig(**{**sizes, **settings})), 0)


def randomize(model: M, pad: int, noise: float = 0.2) -> M:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "positions" not in name:
                parameter.add_(torch.randn_like(parameter) * noise)
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[pad] = 0.0
    return model


def question(config: TransformerConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Return a padded batch of sources (B, Ts), their lengths (B,), and targets (B, Tt)."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([7, 3, 11])
    source = torch.randint(2, config.source_vocab - 1, (3, 11), generator=generator)
    source[torch.arange(11) >= lengths[:, None]] = config.pad
    target = torch.randint(2, config.target_vocab - 1, (3, 9), generator=generator)
    target[:, 0] = config.start
    return source, lengths, target


def their_logits(model: nn.Module, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
    mask = torch.arange(source.shape[1]) < lengths[:, None]
    return model(input_ids=source, attention_mask=mask.long(), decoder_input_ids=target).logits


def translate(model: Transformer, source: Sequence[int], limit: int = 20) -> list[int]:
    """Return our greedy output for one sentence, without the end token."""
    c = model.config
    cache = model.start(torch.tensor([source]), None, limit + 1)
    limits = torch.tensor([limit])
    return greedy(model.step, cache, start=c.start, end=c.end, limits=limits, suppress=[c.pad])[0].tokens


def learn_to_copy(model: Transformer, steps: int = 1000) -> Transformer:
    """Train a model until it writes its input: decisive output that depends on every token of the input.

    How many steps that takes differs from processor to processor.
    """
    c = model.config
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(2)
    mean_loss = 5.0  # moving
    for _ in range(steps):
        length = int(torch.randint(2, 9, (), generator=generator))
        words = torch.randint(2, c.pad, (32, length), generator=generator)
        source = torch.cat([words, torch.full((32, 1), c.end)], 1)
        target = torch.cat([torch.full((32, 1), c.start), words], 1)
        logits = model(source, None, target)[..., : c.pad]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), source.flatten())
        loss.backward()
        for name, parameter in model.named_parameters():
            if "embedding" in name and parameter.grad is not None:
                parameter.grad[c.pad] = 0.0
        optimizer.step()
        mean_loss += 0.1 * (loss.item() - mean_loss)
        if mean_loss < 0.05:
            break
    return model.eval()

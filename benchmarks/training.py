"""Throughput of training steps (forward, backward, update), in tokens or images per second.

Models are GPT-2 124M on 4 x 256 tokens, BERT base's masked words on 8 x 128, and ViT-Ti on 16 images. The other side
is the model of transformers with its own loss; both use PyTorch's fused AdamW. Ours keeps freed memory, as `train`
does. Dropout follows each configuration. The loss of the first batch without dropout is compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.ceilings import Ceilings
from benchmarks.ours import computing, generator, seeded, training_precisions
from benchmarks.peers import transformers as hugging_face
from benchmarks.work import Prepared, Side, Work
from manyheads.analysis import costs
from manyheads.core.runtime import retain_memory
from manyheads.training.config import TrainingConfig
from manyheads.training.loss import smoothed_cross_entropy
from manyheads.training.optimizers import optimizer_for

LOSS = "difference of the first loss from that of PyTorch in float32"
MASKED = 0.15  # of the tokens, which BERT's loss is of (Devlin 2018, section 3.1)


@dataclass(frozen=True)
class Batch:
    """A batch of texts with equal lengths, or of images (length 1)."""

    preset: str
    rows: int
    length: int = 1

    def tokens(self, vocabulary: int, more: int = 0) -> Tensor:
        return torch.randint(1, vocabulary, (self.rows, self.length + more), generator=generator())

    @property
    def items(self) -> int:
        return self.rows * self.length


def our_gpt(case: Batch, setting: str, threads: int) -> Prepared:
    model = seeded(case.preset)
    tokens = case.tokens(model.config.vocab, 1)
    inputs, write = tokens[:, :-1], tokens[:, 1:].flatten()

    def loss() -> Tensor:
        hidden = model.hidden(inputs).flatten(0, 1)
        return smoothed_cross_entropy(hidden, model.output_weight, None, write, smoothing=0.0, pad=None) / len(write)

    return _steps(model, loss, setting, threads)


def their_gpt(case: Batch, setting: str, threads: int) -> Prepared:
    model = seeded(case.preset)
    tokens = case.tokens(model.config.vocab, 1)
    inputs, write = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    other = hugging_face.trained(model, "AutoModelForCausalLM", setting)
    return _steps(other, lambda: other(inputs, labels=write, shift_labels=write).loss, setting, threads)


def our_bert(case: Batch, setting: str, threads: int) -> Prepared:
    model = seeded(case.preset, head="masked_lm")
    tokens = case.tokens(model.config.vocab)
    lengths = torch.full((case.rows,), case.length)
    at = _masked(case)
    answers = tokens.flatten()[at]

    def loss() -> Tensor:
        states = model.encode(tokens, lengths).flatten(0, 1)
        words = model.transform_states(states[at])
        total = smoothed_cross_entropy(
            words, model.embedding.weight, model.output_bias, answers, smoothing=0.0, pad=None
        )
        return total / len(at)

    return _steps(model, loss, setting, threads)


def their_bert(case: Batch, setting: str, threads: int) -> Prepared:
    model = seeded(case.preset, head="masked_lm")
    tokens = case.tokens(model.config.vocab)
    other = hugging_face.trained(model, "AutoModelForMaskedLM", setting)
    at = _masked(case)
    labels = torch.full((case.items,), -100).index_copy(0, at, tokens.flatten()[at]).view_as(tokens)
    seen = torch.ones_like(tokens)
    return _steps(other, lambda: other(tokens, attention_mask=seen, labels=labels).loss, setting, threads)


def _masked(case: Batch) -> Tensor:
    """Return the positions (N,) to predict among all tokens. The tokens stay unmasked, which costs the same."""
    order = torch.randperm(case.items, generator=generator())
    return order[: max(1, round(MASKED * case.items))].sort().values


def our_vit(case: Batch, setting: str, threads: int) -> Prepared:
    model = seeded(case.preset)
    images, labels = _images(case, model)
    return _steps(model, lambda: F.cross_entropy(model(images).float(), labels), setting, threads)


def their_vit(case: Batch, setting: str, threads: int) -> Prepared:
    model = seeded(case.preset)
    images, labels = _images(case, model)
    other = hugging_face.trained(model, "AutoModelForImageClassification", setting)
    return _steps(other, lambda: other(images, labels=labels).loss, setting, threads)


def _images(case: Batch, model: Any) -> tuple[Tensor, Tensor]:
    c = model.config
    images = torch.randn(case.rows, c.channels, c.image_size, c.image_size, generator=generator())
    return images, torch.randint(len(c.labels), (case.rows,), generator=generator())


def _steps(model: Any, loss: Callable[[], Tensor], setting: str, threads: int) -> Prepared:
    update = optimizer_for(model, TrainingConfig(optimizer="adamw", schedule="constant", steps=1))
    for group in update.param_groups:
        group["lr"] = 1e-4

    def run() -> None:
        with computing(threads, setting):
            value = loss()
        with computing(threads, "float32"):
            value.backward()
            update.step()
            update.zero_grad()

    model.eval()
    with torch.no_grad(), computing(threads, setting):
        first = np.array(float(loss()))
    model.train()
    run()  # makes the moments
    return Prepared(run, first)


def loss_apart(reference: Any, output: Any) -> float:
    return float(abs(reference - output))


def least(case: Batch, precision: str, ceilings: Ceilings) -> float:
    """Three times the products of a forward pass; BERT's logits are those of the masked tokens alone."""
    settings = {"head": "none"} if case.preset.startswith("bert/") else {}
    with torch.device("meta"):
        model = seeded(case.preset, **settings)
    operations = costs.flops(model, *([case.length] if case.length > 1 else []))["training"]
    if settings:
        c = model.config
        operations += costs.TRAINING_PASSES * 2 * MASKED * case.length * c.width * (c.vocab + c.width)
    return ceilings.least(precision, 0, case.rows * operations)


def _work(unit: str, name: str, case: Batch, ours: Callable[..., Prepared], theirs: Callable[..., Prepared]) -> Work:
    return Work(
        unit=unit, cases={name: case}, amount=lambda case: case.items, least=least,
        ours=Side(training_precisions(), ours, retain_memory),
        peers={"transformers": Side(hugging_face.COMPILED, theirs)},
        error=loss_apart, error_is=LOSS,
    )  # fmt: skip


GPT2 = _work("tokens/s", "4 x 256", Batch("gpt2/124m", 4, 256), our_gpt, their_gpt)
BERT = _work("tokens/s", "8 x 128", Batch("bert/base-uncased", 8, 128), our_bert, their_bert)
VIT = _work("images/s", "16 images", Batch("vit/ti16", 16), our_vit, their_vit)

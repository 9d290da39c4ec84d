"""Cosine similarity of the class token and the distillation token of a DeiT, layer by layer (Touvron 2021, section 4).

The paper's network learns two different tokens, with cosine 0.06. Their states become more similar from layer to layer,
up to 0.93 after the last layer. The two tokens differ because they learn different labels: the class token the true
labels, the distillation token the teacher's labels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.core.runtime import eval_mode
from manyheads.errors import UserError
from manyheads.models.vit import ViT


@dataclass(frozen=True)
class TokenSimilarity:
    """Cosine similarity of DeiT's class token and distillation token, averaged over images.

    tokens  similarity of the two learned embeddings, which do not depend on the image
    layers  similarity of the two states before the first layer, with positions added, and after each layer
    output  similarity of the two states after the final norm, which the two classification heads read
    images  number of images
    """

    tokens: float
    layers: tuple[float, ...]
    output: float
    images: int

    def __str__(self) -> str:
        rows = [("tokens", self.tokens), ("with positions", self.layers[0])]
        rows += [(f"layer {n}", cosine) for n, cosine in enumerate(self.layers[1:], 1)]
        lines = [f"{name:15} {cosine:6.3f}" for name, cosine in [*rows, ("final norm", self.output)]]
        return "\n".join([f"cosine similarity of the class and distillation tokens, {self.images:,} images", *lines])


def token_similarity(model: ViT, batches: Iterable[Tensor]) -> TokenSimilarity:
    """Return the similarity of DeiT's two tokens, averaged over batches of normalized images (B, C, Y, X).

    The model runs without dropout, and its mode is restored. Raises UserError for a model without a distillation token,
    and if there is no image.
    """
    if model.class_token is None or model.distillation_token is None:
        raise UserError("the model has no distillation token: expected a DeiT trained with distilled=true")
    total, images = torch.zeros(model.config.layers + 2, dtype=torch.float64), 0
    with eval_mode(model):
        for batch in batches:
            states = model.all_states(batch.to(model.class_token.device))
            assert model.encoder.norm is not None
            states.append(model.encoder.norm(states[-1]))
            total += torch.stack([_cosine(x[:, 0], x[:, 1]).sum() for x in states]).cpu()
            images += len(batch)
        tokens = float(_cosine(model.class_token, model.distillation_token))
    if not images:
        raise UserError("no images: expected at least one")
    *layers, output = (total / images).tolist()
    return TokenSimilarity(tokens, tuple(layers), output, images)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    return F.cosine_similarity(a.double(), b.double(), dim=-1)

"""How alike the class token and the distillation token of a DeiT are, layer by layer (Touvron 2021, section 4).

The paper's network learns two different tokens, of cosine 0.06; layer by layer their states come closer, up to 0.93
after the last one, similar but not the same: the teacher's labels are similar to the true ones, but not the same.
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
    """Cosines of the two tokens, the mean over images.

    tokens  of the learned vectors themselves; the same for every image
    layers  of their states: with their positions, then after each layer
    output  after the final norm, as the heads read them
    images  how many
    """

    tokens: float
    layers: tuple[float, ...]
    output: float
    images: int

    def __str__(self) -> str:
        rows = [("tokens", self.tokens), ("with positions", self.layers[0])]
        rows += [(f"layer {n}", cosine) for n, cosine in enumerate(self.layers[1:], 1)]
        lines = [f"{name:15} {cosine:6.3f}" for name, cosine in [*rows, ("final norm", self.output)]]
        return "\n".join([f"cosine of the class and the distillation token, {self.images:,} images", *lines])


def token_similarity(model: ViT, batches: Iterable[Tensor]) -> TokenSimilarity:
    """Cosines over batches of normalised images (B, C, Y, X), without dropout. The model's mode stays as it is.

    Raises UserError for a model without a distillation token, and where there is no image.
    """
    if model.class_token is None or model.distillation_token is None:
        raise UserError("the model has no distillation token: expected a DeiT, trained with distilled=true")
    total, images = torch.zeros(model.config.layers + 2, dtype=torch.float64), 0
    with eval_mode(model):
        for batch in batches:
            states = model.states(batch.to(model.class_token.device))
            assert model.encoder.norm is not None
            states.append(model.encoder.norm(states[-1]))
            total += torch.stack([_cosine(x[:, 0], x[:, 1]).sum() for x in states]).cpu()
            images += len(batch)
        tokens = float(_cosine(model.class_token, model.distillation_token))
    if not images:
        raise UserError("no image to look at: expected at least one")
    *layers, output = (total / images).tolist()
    return TokenSimilarity(tokens, tuple(layers), output, images)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    return F.cosine_similarity(a.double(), b.double(), dim=-1)

"""Cosine similarity of DeiT's two tokens, compared with NumPy and in two known cases."""

import numpy as np
import pytest
import torch

from manyheads.analysis.figures.token_similarity import token_similarity
from manyheads.models.vit import ViT, ViTConfig


def deit(**settings: object) -> ViT:
    torch.manual_seed(0)
    sizes = {"labels": ("a", "b"), "image_size": 6, "patch": 3, "width": 8, "layers": 2, "heads": 2, "feed_forward": 12}
    model = ViT(ViTConfig(**{**sizes, "distilled": True, "dropout": 0.5, **settings}))  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.5)
    return model


def test_cosines_are_reported_for_every_layer() -> None:
    model, images = deit(), torch.randn(5, 3, 6, 6)
    similarity = token_similarity(model, [images[:3], images[3:]])
    assert model.training
    assert similarity.images == 5
    states = [x.detach().numpy().astype(np.float64) for x in model.eval().all_states(images)]
    states.append(model.encode(images).detach().numpy().astype(np.float64))
    for cosine, x in zip([*similarity.layers, similarity.output], states, strict=True):
        each = [a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in x[:, :2]]
        assert cosine == pytest.approx(np.mean(each), abs=1e-6)
    a, b = (model.get_parameter(f"{name}_token").detach().numpy() for name in ("class", "distillation"))
    assert similarity.tokens == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), abs=1e-6)
    assert len(str(similarity).splitlines()) == 1 + 2 + 2 + 1
    assert f"layer 2         {similarity.layers[2]:6.3f}" in str(similarity)


def test_equal_tokens_stay_equal_and_opposite_tokens_start_opposite() -> None:
    model = deit()
    first, second = model.get_parameter("class_token"), model.get_parameter("distillation_token")
    with torch.no_grad():
        model.positions.table[1] = model.positions.table[0]
        second.copy_(first)
    similarity = token_similarity(model, [torch.randn(2, 3, 6, 6)])
    assert (similarity.tokens, *similarity.layers, similarity.output) == pytest.approx([1.0] * 5)
    with torch.no_grad():
        model.positions.table[:2] = 0.0
        second.copy_(-first)
    similarity = token_similarity(model, [torch.randn(2, 3, 6, 6)])
    assert (similarity.tokens, similarity.layers[0]) == pytest.approx((-1.0, -1.0))
    assert similarity.output > -1.0


def test_a_text_without_two_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="no distillation token"):
        token_similarity(deit(distilled=False), [torch.zeros(1, 3, 6, 6)])
    with pytest.raises(ValueError, match="at least one"):
        token_similarity(deit(), [])

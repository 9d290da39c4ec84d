"""The textbook's classifier: published counts, Keras's formulas, and the effects of padding and order."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.core.attention import Attention
from manyheads.core.recording import record
from manyheads.models.presets import preset
from manyheads.models.text_classifier import TextClassifier, TextClassifierConfig


def small(**settings: Any) -> TextClassifier:
    sizes = {"vocab": 30, "width": 8, "heads": 2, "head_width": 6, "feed_forward": 5, "max_positions": 12}
    torch.manual_seed(1)
    return TextClassifier(TextClassifierConfig(**{**sizes, **settings})).double()


def filled(model: TextClassifier, tokens: Tensor) -> Tensor:
    """Keras's layers as its sources compute them, on texts that are filled up with padding."""
    p = dict(model.named_parameters())
    c = model.config
    x = F.embedding(F.pad(tokens, (0, c.max_positions - tokens.shape[1]), value=c.pad), p["embedding.weight"])
    if model.positions is not None:
        x = x + p["positions.table"]
    b = "encoder.blocks.0."
    q, k, v = (
        F.linear(x, p[f"{b}attention.{n}.weight"], p[f"{b}attention.{n}.bias"]).unflatten(-1, (c.heads, c.head_width))
        for n in ("query", "key", "value")
    )
    scores = torch.einsum("bthd,bshd->bhts", q, k) / c.head_width**0.5
    mixed = torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v).flatten(2)
    attended = F.linear(mixed, p[f"{b}attention.output.weight"], p[f"{b}attention.output.bias"])
    norm = [(p[f"{b}{n}_norm.weight"], p[f"{b}{n}_norm.bias"]) for n in ("attention", "feed_forward")]
    x = F.layer_norm(x + attended, (c.width,), *norm[0], eps=1e-3)
    hidden = F.linear(x, p[f"{b}feed_forward.expand.weight"], p[f"{b}feed_forward.expand.bias"]).relu()
    added = F.linear(hidden, p[f"{b}feed_forward.contract.weight"], p[f"{b}feed_forward.contract.bias"])
    x = F.layer_norm(x + added, (c.width,), *norm[1], eps=1e-3)
    pooled = x.amax(1) if c.pooling == "max" else x.mean(1)
    return F.linear(pooled, p["output.weight"], p["output.bias"])


def test_published_counts_are_reproduced() -> None:
    with torch.device("meta"):
        model, corrected = (
            TextClassifier(preset("text-classifier/textbook")),
            TextClassifier(preset("text-classifier/corrected")),
        )
    assert sum(p.numel() for p in model.encoder.parameters()) == 10_656
    assert sum(p.numel() for p in model.parameters()) == 650_689
    assert sum(p.numel() for p in corrected.parameters()) == 650_689 + 600 * 32
    with torch.device("meta"):
        three = TextClassifier(preset("text-classifier/textbook", labels=("a", "b", "c")))
    assert sum(p.numel() for p in three.parameters()) == 650_689 + 2 * 33


@pytest.mark.parametrize("pooling", ["max", "mean"])
@pytest.mark.parametrize("positions", ["none", "learned"])
@pytest.mark.parametrize("training", [False, True])
def test_unmasked_padding_equals_keras(pooling: str, positions: str, training: bool) -> None:
    model = small(pooling=pooling, positions=positions, dropout=0.0).train(training)
    tokens = torch.randint(1, 30, (4, 12))
    lengths = torch.tensor([12, 7, 1, 4])
    for row, length in enumerate(lengths):
        tokens[row, length:] = 0
    expected = filled(model, tokens)  # (4, 1)
    logits = model(tokens, lengths)
    assert torch.allclose(logits[:, 1:] - logits[:, :1], expected, atol=1e-12)
    assert torch.allclose(logits.softmax(-1)[:, 1:], expected.sigmoid(), atol=1e-12)
    labels = torch.tensor([0, 1, 1, 0])
    theirs = F.binary_cross_entropy_with_logits(expected[:, 0], labels.double())
    wanted = torch.autograd.grad(theirs, list(model.parameters()), allow_unused=True)
    found = torch.autograd.grad(F.cross_entropy(logits, labels), list(model.parameters()), allow_unused=True)
    for ours, reference in zip(found, wanted, strict=True):
        assert torch.allclose(ours, reference, atol=1e-12)


@pytest.mark.parametrize("settings", [{}, {"positions": "learned", "masked": True, "pooling": "mean"}])
def test_batch_results_equal_single_results_for_each_text(settings: dict[str, Any]) -> None:
    model = small(**settings).eval()
    tokens, lengths = torch.randint(1, 30, (5, 9)), torch.tensor([9, 3, 1, 8, 5])
    together = model(tokens, lengths)  # independent of the padding after a text
    alone = torch.cat([model(row[None, :n]) for row, n in zip(tokens, lengths, strict=True)])
    assert torch.allclose(together, alone, atol=1e-12)


def test_only_the_corrected_model_depends_on_order_and_not_on_padding() -> None:
    tokens = torch.arange(1, 8)[None]
    textbook, corrected = small().eval(), small(positions="learned", masked=True).eval()
    assert torch.allclose(textbook(tokens), textbook(tokens.flip(1)), atol=1e-12)
    assert (corrected(tokens) - corrected(tokens.flip(1))).abs().max() > 1e-4
    longer, room = small(max_positions=40).eval(), small(positions="none", masked=True).eval()
    longer.load_state_dict(textbook.state_dict())
    assert (longer(tokens) - textbook(tokens)).abs().max() > 1e-6, "what fills the text up is read"
    roomier = small(positions="none", masked=True, max_positions=40).eval()
    roomier.load_state_dict(room.state_dict())
    assert torch.equal(roomier(tokens), room(tokens))


def test_parameters_train_and_maps_are_recorded() -> None:
    model = small(labels=("a", "b", "c"), positions="learned", masked=True, layers=2)
    with record(model) as maps:
        loss = F.cross_entropy(model(torch.randint(1, 30, (6, 12))), torch.tensor([0, 1, 2, 0, 1, 2]))
    loss.backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().max() > 1e-12]
    assert still == [f"encoder.blocks.{i}.attention.key.bias" for i in range(2)], "analytically zero"
    assert [tuple(calls[0].shape) for calls in maps.values()] == [(6, 2, 12, 12)] * 2


def test_weights_are_initialized_as_in_keras() -> None:
    model = TextClassifier(preset("text-classifier/corrected"))
    assert 0.0499 < model.embedding.weight.abs().max() <= 0.05
    assert model.positions is not None
    assert 0.049 < model.positions.table.abs().max() <= 0.05
    attention = model.get_submodule("encoder.blocks.0.attention")
    assert isinstance(attention, Attention)
    for layer, fans in ((attention.query, 64 + 1024), (attention.output, 64 + 64), (model.output, 32 + 1)):
        limit = (6 / fans) ** 0.5
        assert 0.8 * limit < layer.weight.abs().max() <= limit
        assert not layer.bias.any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"labels": ("one",)}, "expected a list of at least 2 distinct names"),
        ({"labels": ("a", "b", "a")}, "expected a list of at least 2 distinct names"),
        ({"pooling": "sum"}, "pooling is 'sum': expected one of max, mean"),
        ({"pad": 30}, "pad is 30: expected an integer from 0 to below vocab"),
    ],
)
def test_impossible_settings_are_reported(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**settings)


def test_an_overlong_text_is_refused() -> None:
    with pytest.raises(ValueError, match="13 tokens, but the model takes at most 12"):
        small()(torch.ones(1, 13, dtype=torch.int64))
    with pytest.raises(
        ValueError, match="unknown preset 'text-classifier/book': did you mean text-classifier/textbook"
    ):
        preset("text-classifier/book")

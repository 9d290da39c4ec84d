"""The convolutional translator with attention: equal to loops over positions in NumPy."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from manyheads.analysis.costs import flops
from manyheads.core.recording import record
from manyheads.models.convs2s import ConvS2S, ConvS2SConfig

Array = NDArray[np.float64]
TOKENS: dict[str, Any] = {"source_vocab": 13, "target_vocab": 13, "pad": 12, "end": 0, "start": 12}
SIZES: dict[str, Any] = {"width": 6, "hidden": 8, "encoder_layers": 2, "decoder_layers": 3, "decoder_kernel": 4}
SOURCE = torch.randint(1, 12, (3, 6), generator=torch.Generator().manual_seed(1))
TARGET = torch.randint(1, 12, (3, 7), generator=torch.Generator().manual_seed(2))
LENGTHS = torch.tensor([6, 2, 4])
HALF = np.sqrt(0.5)


def model(**more: Any) -> ConvS2S:
    torch.manual_seed(0)
    net = ConvS2S(ConvS2SConfig(**TOKENS, **SIZES | more)).double().eval()
    with torch.no_grad():
        for parameter in net.parameters():  # biases begin at zero, and lengths at the norms of the directions
            parameter.add_(0.1 * torch.randn_like(parameter))
    return net


class Numbers:
    """The weights of a model as arrays, and its layers as plain formulas."""

    def __init__(self, net: ConvS2S) -> None:
        self.weights = {name: w.detach().numpy() for name, w in net.named_parameters()}

    def affine(self, layer: str, x: Array) -> Array:
        direction = self.weights[f"{layer}.direction"]
        norms = np.array([np.sqrt((row**2).sum()) for row in direction])
        return self.weights[f"{layer}.length"] / norms * (direction @ x) + self.weights[f"{layer}.bias"]

    def gated(self, layer: str, vectors: list[Array], first: int, kernel: int) -> Array:
        """A convolution that reads `kernel` positions from `first` on, with zeros outside of the text."""
        zeros = np.zeros_like(vectors[0])
        read = [vectors[i] if 0 <= i < len(vectors) else zeros for i in range(first, first + kernel)]
        values, gates = np.split(self.affine(layer, np.concatenate(read)), 2)
        return values / (1 + np.exp(-gates))

    def embedded(self, side: int, tokens: torch.Tensor) -> list[Array]:
        table, positions = self.weights["source_embedding.weight"], self.weights[f"positions.{side}.table"]
        return [table[token] + positions[i] for i, token in enumerate(tokens.tolist())]


def expected_logits(net: ConvS2S, source: torch.Tensor, target: torch.Tensor) -> Array:
    c, n = net.config, Numbers(net)
    words = n.embedded(0, source)
    x = [n.affine("encoder.enter", word) for word in words]
    for layer in range(c.encoder_layers):
        name, before, kernel = f"encoder.layers.{layer}.linear", c.encoder_kernel // 2, c.encoder_kernel
        x = [(n.gated(name, x, i - before, kernel) + x[i]) * HALF for i in range(len(x))]
    keys = [n.affine("encoder.leave", state) for state in x]
    values = [(key + word) * HALF for key, word in zip(keys, words, strict=True)]
    words = n.embedded(1, target)
    x = [n.affine("decoder.enter", word) for word in words]
    for layer in range(c.decoder_layers):
        name, outputs = f"decoder.layers.{layer}", []
        for i, word in enumerate(words):
            h = n.gated(f"{name}.convolution.linear", x, i - c.decoder_kernel + 1, c.decoder_kernel)
            query = (n.affine(f"{name}.cross.query", h) + word) * HALF
            scores = np.exp([query @ key for key in keys])
            context = sum(p * value for p, value in zip(scores / scores.sum(), values, strict=True))
            h = (n.affine(f"{name}.cross.output", context * np.sqrt(len(keys))) + h) * HALF
            outputs.append((h + x[i]) * HALF)
        x = outputs
    return np.array([n.weights["source_embedding.weight"] @ n.affine("decoder.leave", state) for state in x])


@pytest.mark.parametrize("more", [{}, {"encoder_kernel": 5, "decoder_kernel": 1, "hidden": 6}])
def test_logits_equal_a_loop_over_positions(more: dict[str, Any]) -> None:
    net = model(**more)
    logits = net(SOURCE, LENGTHS, TARGET).detach().numpy()
    for row, length in enumerate(LENGTHS.tolist()):
        np.testing.assert_allclose(logits[row], expected_logits(net, SOURCE[row, :length], TARGET[row]), atol=1e-12)


def test_no_logits_depend_on_later_tokens() -> None:
    net = model()
    hidden: dict[str, torch.Tensor] = {}
    net.decoder.enter.register_forward_pre_hook(lambda _, inputs: hidden.update(x=inputs[0]))
    logits = net(SOURCE, None, TARGET)
    for position in range(7):
        (gradient,) = torch.autograd.grad(logits[:, position].sum(), hidden["x"], retain_graph=True)
        reached = gradient.abs().sum((0, 2)) > 0
        assert reached.tolist() == [i <= position for i in range(7)]


def test_every_decoder_layer_has_a_map() -> None:
    net = model()
    with record(net) as maps:
        net(SOURCE, LENGTHS, TARGET)
    assert list(maps) == [f"decoder.layers.{layer}.cross" for layer in range(3)]
    for (weights,) in maps.values():
        assert weights.shape == (3, 1, 7, 6)
        assert not weights[1, :, :, 2:].any()


def test_flops_equal_a_formula() -> None:
    c, (words, length) = model().config, (5, 7)
    encoder = words * (2 * c.width * c.hidden + c.encoder_layers * c.encoder_kernel * 2 * c.hidden**2)
    attention = 2 * c.width * c.hidden + 2 * words * c.width
    decoder = 2 * c.width * c.hidden + c.decoder_layers * (c.decoder_kernel * 2 * c.hidden**2 + attention)
    expected = 2 * (encoder + length * (decoder + c.width * c.target_vocab))
    counted = flops(model(), words, length)
    assert counted["forward"] == expected
    assert counted["parts"]["decoder.layers.cross.scores"] == 2 * length * c.decoder_layers * 2 * words * c.width


def test_an_even_kernel_of_the_encoder_is_refused() -> None:
    with pytest.raises(ValueError, match="encoder_kernel is 4: expected an integer that is odd"):
        ConvS2SConfig(**TOKENS, encoder_kernel=4)

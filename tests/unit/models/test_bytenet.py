"""The convolutional translator without attention: equal to loops over positions in NumPy."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from manyheads.analysis.costs import flops
from manyheads.core.recording import tapped
from manyheads.models.bytenet import DILATIONS, ByteNet, ByteNetConfig

Array = NDArray[np.float64]
TOKENS: dict[str, Any] = {"source_vocab": 13, "target_vocab": 13, "pad": 12, "end": 0, "start": 12}
SOURCE = torch.randint(1, 12, (3, 6), generator=torch.Generator().manual_seed(1))
TARGET = torch.randint(1, 12, (3, 11), generator=torch.Generator().manual_seed(2))
LENGTHS = torch.tensor([6, 2, 4])


def model(**more: Any) -> ByteNet:
    torch.manual_seed(0)
    net = ByteNet(ByteNetConfig(**TOKENS, **{"width": 8, "hidden": 6, "sets": 1} | more)).double().eval()
    with torch.no_grad():
        for parameter in net.parameters():  # norms begin at ones and zeros
            parameter.add_(0.1 * torch.randn_like(parameter))
    return net


class Numbers:
    """The weights of a model as arrays, and its layers as plain formulas."""

    def __init__(self, net: ByteNet) -> None:
        self.weights = {name: w.detach().numpy() for name, w in net.named_parameters()}
        self.scale = math.sqrt(net.config.width)

    def embedded(self, tokens: torch.Tensor) -> list[Array]:
        return list(self.weights["source_embedding.weight"][tokens.numpy()] * self.scale)

    def affine(self, layer: str, x: Array) -> Array:
        return self.weights[f"{layer}.weight"] @ x + self.weights[f"{layer}.bias"]

    def rectified(self, norm: str, x: Array) -> Array:
        normal = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
        return np.maximum(normal * self.weights[f"{norm}.weight"] + self.weights[f"{norm}.bias"], 0)

    def block(self, layer: str, x: list[Array], offsets: list[int]) -> list[Array]:
        """A residual block whose convolution reads these positions relative to its own, zeros outside of the text."""
        inner = [self.affine(f"{layer}.narrow", self.rectified(f"{layer}.narrow_norm", state)) for state in x]
        inner = [self.rectified(f"{layer}.norm", state) for state in inner]
        zeros, outputs = np.zeros_like(inner[0]), []
        for i, state in enumerate(x):
            read = [inner[i + offset] if 0 <= i + offset < len(x) else zeros for offset in offsets]
            mixed = self.affine(f"{layer}.convolution", np.concatenate(read))
            outputs.append(state + self.affine(f"{layer}.widen", self.rectified(f"{layer}.widen_norm", mixed)))
        return outputs


def expected_logits(net: ByteNet, source: torch.Tensor, target: torch.Tensor) -> Array:
    c, n = net.config, Numbers(net)
    memory = n.embedded(source)
    memory += [np.zeros(c.width)] * (math.ceil(c.unfolding * len(source)) - len(source))
    for layer, dilation in enumerate(DILATIONS * c.sets):
        around = c.encoder_kernel // 2
        memory = n.block(f"encoder.{layer}", memory, [i * dilation for i in range(-around, around + 1)])
    x = [word + memory[i] if i < len(memory) else word for i, word in enumerate(n.embedded(target))]
    for layer, dilation in enumerate(DILATIONS * c.sets):
        x = n.block(f"decoder.{layer}", x, [i * dilation for i in range(1 - c.decoder_kernel, 1)])
    outputs = [n.affine("combine", n.rectified("norm", state)) for state in x]
    return np.array([n.weights["source_embedding.weight"] @ output for output in outputs])


@pytest.mark.parametrize("more", [{}, {"encoder_kernel": 5, "decoder_kernel": 2, "sets": 2, "unfolding": 2.5}])
def test_logits_equal_a_loop_over_positions(more: dict[str, Any]) -> None:
    net = model(**more)
    logits = net(SOURCE, LENGTHS, TARGET).detach().numpy()
    for row, length in enumerate(LENGTHS.tolist()):
        np.testing.assert_allclose(logits[row], expected_logits(net, SOURCE[row, :length], TARGET[row]), atol=1e-12)


def test_receptive_fields() -> None:
    """A set of five blocks with kernels of 3 positions reads 31 positions on each side, or 62 earlier ones."""
    net, length, position = model(width=16, hidden=16, unfolding=1.0), 140, 70
    tokens = torch.zeros(1, length, dtype=torch.int64)
    words = torch.randn(2, 1, length, 16, dtype=torch.float64, requires_grad=True)
    embedded = iter(words)
    net.source_embedding.register_forward_hook(lambda *_: next(embedded))
    hidden = net.hidden(tokens, None, tokens)[:, position]
    source, target = torch.autograd.grad(hidden.square().sum(), words)[0][:, 0].abs().sum(-1) > 0
    assert target.nonzero().flatten().tolist() == [*range(position - 62, position + 1)]
    # A state of the decoder reads the memory at the positions of its target words.
    assert source.nonzero().flatten().tolist() == [*range(position + 31 + 1)]


def test_flops_equal_a_formula() -> None:
    c, (words, length) = model().config, (5, 7)

    def block(kernel: int) -> int:
        return 2 * c.width * c.hidden + kernel * c.hidden**2

    encoder = math.ceil(c.unfolding * words) * 5 * block(c.encoder_kernel)
    decoder = length * (5 * block(c.decoder_kernel) + c.width**2 + c.width * c.target_vocab)
    assert flops(model(), words, length)["forward"] == 2 * (encoder + decoder)


def test_no_attention() -> None:
    assert tapped(model()) == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder_kernel": 4}, "encoder_kernel is 4: expected an integer that is odd"),
        ({"unfolding": 0.9}, "unfolding is 0.9: expected a number from 1 to 16"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ByteNetConfig(**TOKENS, **settings)

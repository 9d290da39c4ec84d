"""Influence of one word on the final state, by its distance, in an RNN, an LSTM, convolutions and attention.

The influence of a word is the norm of a derivative: of the network's final state with respect to the vector of the
word. The distance is the number of words from this word to the last word of the text. The influence is measured before
and after training on a recall task: one word of a text is marked, and at the end of the text the network must name it.
The accuracy of recall is reported for each distance, too.

rnn, lstm    one layer: at distance k, the influence passes k steps, each of which makes it smaller or larger
convolution  `layers` layers with kernel size `kernel`: no influence beyond layers x (kernel - 1) / 2
attention    two blocks: every word influences the final state directly, at any distance
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.analysis.drawing import save
from manyheads.core.attention import Attention
from manyheads.core.block import Block, Stack
from manyheads.core.layers import FeedForward
from manyheads.core.positions import PositionTable
from manyheads.errors import UserError, extra
from manyheads.models.sequence_baselines import Recurrent
from papers.reach.receptive_field import Along

KINDS = ("rnn", "lstm", "convolution", "attention")
SAMPLES = 16  # number of texts over which the influence is averaged, for each distance
ASKED = 64  # number of test texts for the recall accuracy, for each distance of the marked word
BATCH = 64
HEADS, BLOCKS = 4, 2  # settings of the attention network


# dictionaries by title of a panel and by name of a network; each list has a value for each distance
Parts = dict[str, dict[str, list[float]]]
RECALLED = "fraction of marked words recalled"


@dataclass(frozen=True)
class Fading:
    """Influence and recall accuracy of each network, for distances 0 to T - 1 from the last word of a text."""

    before: dict[str, list[float]]
    after: dict[str, list[float]]
    recalled: dict[str, list[float]]
    parameters: dict[str, int]
    symbols: int

    @property
    def parts(self) -> Parts:
        return {"influence, before training": self.before, "influence, after training": self.after,
                RECALLED: self.recalled}  # fmt: skip


def table(parts: Parts) -> str:
    """Return the influence and accuracy curves as a text table, at distances 0, 1, 2, 4, 8 and so on."""
    length = max(len(curve) for curves in parts.values() for curve in curves.values())
    shown = [k for k in (0, *(2**n for n in range(20))) if k < length - 1] + [length - 1]
    wide = 2 + max(len(name) for title, curves in parts.items() for name in (title, *curves))
    lines = [f"{'distance in words':{wide}}" + "".join(f"{k:9}" for k in shown)]
    for title, curves in parts.items():
        digits = ".2f" if title == RECALLED else ".1e"
        lines += ["", title]
        for name, curve in curves.items():
            lines.append(f"  {name:{wide - 2}}" + "".join(f"{format(curve[k], digits):>9}" for k in shown))
    return "\n".join(lines)


class Recaller(nn.Module):
    """Network for the recall task, which predicts the marked symbol of a text.

    The network maps tokens (B, T) to logits (B, S) over the S symbols. Token s is symbol s, and token S + s is the same
    symbol with a mark.

    state(x)  final state (B, D) for word vectors (B, T, D)
    """

    def __init__(self, kind: str, symbols: int, length: int, width: int, layers: int, kernel: int) -> None:
        super().__init__()
        self.symbols = symbols
        self.embedding = nn.Embedding(2 * symbols, width)
        self.mixer = _mixer(kind, length, width, layers, kernel)
        self.output = nn.Linear(width, symbols)

    def state(self, x: Tensor) -> Tensor:
        if isinstance(self.mixer, Recurrent):
            return self.mixer(x, None)
        last: Tensor = self.mixer(x)[:, -1]
        return last

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.output(self.state(self.embedding(tokens)))
        return logits


def _mixer(kind: str, length: int, width: int, layers: int, kernel: int) -> nn.Module:
    if kind in ("rnn", "lstm"):
        return Recurrent(width, width, "lstm" if kind == "lstm" else "rnn")
    if kind == "convolution":
        convolutions = [Along(nn.Conv1d(width, width, kernel, padding="same")) for _ in range(layers)]
        return nn.Sequential(*(module for layer in convolutions for module in (layer, nn.ReLU())))
    assert kind == "attention", kind
    blocks = [Block(Attention(width, HEADS), FeedForward(width, 2 * width), norm="pre") for _ in range(BLOCKS)]
    return nn.Sequential(PositionTable(length, width, "learned"), Stack(blocks, nn.LayerNorm(width)))


def texts(symbols: int, length: int, distances: Tensor, random: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return random texts for the recall task, and the marked symbol of each text.

    The texts are tokens (B, T), the symbols (B,). The marked token lies `distances` (B,) tokens before the last one.
    """
    tokens = torch.randint(symbols, (len(distances), length), generator=random)
    rows, at = torch.arange(len(distances)), length - 1 - distances
    asked = tokens[rows, at]
    tokens[rows, at] += symbols
    return tokens, asked


def influence(state: Callable[[Tensor], Tensor], vectors: Tensor, random: torch.Generator) -> Tensor:
    """Return the norm of the derivative of the final state by each word vector, |d state / d vector|, (B, T).

    The Frobenius norm is estimated from the derivative of the state along one random direction. The mean square over
    all directions equals the squared norm.

    state    function from vectors (B, T, D) to the final state (B, N)
    """
    x = vectors.detach().requires_grad_()
    output = state(x)
    direction = torch.randn(output.shape, generator=random, dtype=output.dtype)
    (gradient,) = torch.autograd.grad((output * direction).sum(), x)
    return gradient.norm(dim=-1)


def fading(
    length: int = 64, width: int = 64, layers: int = 4, kernel: int = 5, symbols: int = 8, steps: int = 1000,
    seed: int = 1,
) -> Fading:  # fmt: skip
    """Train the four networks on the recall task, and measure influence and accuracy at every distance of the marked
    word.

    Raises UserError for invalid sizes.

    layers, kernel  number of layers and kernel size of the convolutional network
    steps           number of training steps, each on 64 texts
    """
    if kernel % 2 == 0 or width % HEADS:
        raise UserError(
            f"kernel={kernel}, width={width}: expected an odd kernel, and a width divisible by {HEADS} heads"
        )
    before, after, recalled, parameters = {}, {}, {}, {}
    for kind in KINDS:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = Recaller(kind, symbols, length, width, layers, kernel)
        parameters[kind] = sum(parameter.numel() for parameter in net.parameters())
        before[kind] = _by_distance(net, length, seed)
        _train(net, length, steps, seed)
        after[kind] = _by_distance(net, length, seed)
        recalled[kind] = _recalled(net, length, seed)
    return Fading(before, after, recalled, parameters, symbols)


def _by_distance(net: Recaller, length: int, seed: int) -> list[float]:
    """Return the influence of the marked word on the final state at each distance, in float64.

    It is exactly zero beyond the receptive field of the network.
    """
    random = torch.Generator().manual_seed(seed)
    precise = copy.deepcopy(net).double().eval()
    distances = torch.arange(length).repeat(SAMPLES)
    tokens, _ = texts(net.symbols, length, distances, random)
    norms = influence(precise.state, precise.embedding(tokens), random)
    marked = norms[torch.arange(len(tokens)), length - 1 - distances].view(SAMPLES, length)
    return marked.square().mean(0).sqrt().tolist()


def _train(net: Recaller, length: int, steps: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(steps):
        distances = torch.randint(length, (BATCH,), generator=random)
        tokens, asked = texts(net.symbols, length, distances, random)
        optimizer.zero_grad()
        F.cross_entropy(net(tokens), asked).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()


@torch.no_grad()
def _recalled(net: Recaller, length: int, seed: int) -> list[float]:
    random = torch.Generator().manual_seed(seed + 1)  # These random test texts do not occur in training.
    distances = torch.arange(length).repeat(ASKED)
    tokens, asked = texts(net.symbols, length, distances, random)
    right = net.eval()(tokens).argmax(-1) == asked
    return right.view(ASKED, length).double().mean(0).tolist()


def draw(parts: Parts, path: str | Path, guessed: float | None = None) -> None:
    """Draw one panel for each group of curves, such as before and after training, over the distance.

    Influences have a logarithmic scale, without the values that are zero.

    guessed  accuracy of random guessing, drawn as a dotted line
    """
    with extra("analysis", "a picture"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(3.8 * len(parts), 3.4), layout="constrained")
    panels = figure.subplots(1, len(parts), squeeze=False)[0]
    for panel, (title, curves) in zip(panels, parts.items(), strict=True):
        for name, curve in curves.items():
            panel.plot(curve if title == RECALLED else [value or math.nan for value in curve], label=name)
        panel.set(title=title, xlabel="distance from the last word")
        if title == RECALLED:
            panel.set(ylim=(-0.03, 1.03))
            panel.axhline(guessed, color="0.6", linewidth=1, linestyle=":")
        else:
            panel.set(yscale="log")
    handles = panels[0].get_lines()
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    save(figure, path)

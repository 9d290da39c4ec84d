"""Sequence baselines: counts, recurrences computed step by step, and independence of padding."""

from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.models.presets import preset
from manyheads.models.sequence_baselines import Kind, SequenceBaseline, SequenceBaselineConfig

KINDS = get_args(Kind)
EMBEDDING = 20_000 * 32


def small(kind: str, **settings: Any) -> SequenceBaseline:
    sizes = {"vocab": 30, "width": 6, "hidden": 5, "max_positions": 23}
    torch.manual_seed(1)
    return SequenceBaseline(preset(f"sequence-baseline/{kind}", **{**sizes, **settings})).double()


@pytest.mark.parametrize(
    ("kind", "published", "second_biases"),
    [
        ("rnn", EMBEDDING + 32 * 32 + 32 * 32 + 32 + 33, 32),  # the formula of the slides: W x + U h + b
        ("lstm", 648_353, 4 * 32),
        ("gru", EMBEDDING + 6_336 + 33, 0),  # GRU(32) of Keras
        ("bilstm", 656_705, 2 * 4 * 32),
        ("conv1d", 654_433, 0),
        ("conv2d", EMBEDDING + (9 * 32 + 32) + (9 * 32 * 32 + 32) + (16 * 32 + 1), 0),
    ],
)
def test_parameter_counts_match_the_paper_with_second_biases(kind: str, published: int, second_biases: int) -> None:
    with torch.device("meta"):
        model = SequenceBaseline(preset(f"sequence-baseline/{kind}"))
    assert sum(p.numel() for p in model.parameters()) == published + second_biases


def recurrent(model: SequenceBaseline, x: Tensor) -> Tensor:
    """The last state on one text x (T, D), step by step from the formulas."""
    p = {name.removeprefix("mixer.layer."): value for name, value in model.named_parameters()}
    found = []
    for suffix, inputs in (("_l0", x), ("_l0_reverse", x.flip(0))):
        if f"weight_ih{suffix}" not in p:
            continue
        h = c = x.new_zeros(model.config.hidden)
        for step in inputs:
            inner = p[f"weight_ih{suffix}"] @ step + p[f"bias_ih{suffix}"]
            outer = p[f"weight_hh{suffix}"] @ h + p[f"bias_hh{suffix}"]
            if model.config.kind == "gru":
                (r, z, n), (s, u, m) = inner.chunk(3), outer.chunk(3)
                z = (z + u).sigmoid()
                h = (1 - z) * (n + (r + s).sigmoid() * m).tanh() + z * h
                continue
            gates = inner + outer
            if model.config.kind == "rnn":
                h = gates.tanh()
                continue
            enter, forget, cell, out = gates.chunk(4)
            c = forget.sigmoid() * c + enter.sigmoid() * cell.tanh()
            h = out.sigmoid() * c.tanh()
        found.append(h)
    return torch.cat(found)


@pytest.mark.parametrize("kind", ["rnn", "lstm", "gru", "bilstm"])
def test_recurrences_equal_the_formulas(kind: str) -> None:
    model = small(kind).eval()
    tokens, lengths = torch.randint(1, 30, (3, 9)), torch.tensor([9, 1, 6])
    logits = model(tokens, lengths)
    for row, length, found in zip(tokens, lengths, logits, strict=True):
        state = recurrent(model, model.embedding(row[:length]))
        assert torch.allclose(model.output(state), found[1:] - found[:1], atol=1e-12)


@pytest.mark.parametrize("kind", ["conv1d", "conv2d"])
def test_convolutions_equal_sums_over_neighbors(kind: str) -> None:
    """Brute force: every output is a sum over a window, every pool a maximum over its cell."""
    model = small(kind).eval()
    c, mixer = model.config, model.mixer
    x = model.embedding(torch.randint(1, 30, (13,)))  # (T, D)
    grid = x[:, None, :] if kind == "conv1d" else x[:, :, None]  # words x (1 or features) x channels
    for layer in (mixer.first, mixer.second):
        weight = layer.weight if kind == "conv2d" else layer.weight[..., None]  # (out, in, words, features)
        reach, across = c.kernel // 2, (weight.shape[3] - 1) // 2
        out = torch.empty(*grid.shape[:2], c.hidden, dtype=x.dtype)
        for t in range(grid.shape[0]):
            for f in range(grid.shape[1]):
                total = layer.bias.clone()
                for dt in range(-reach, reach + 1):
                    for df in range(-across, across + 1):
                        if 0 <= t + dt < grid.shape[0] and 0 <= f + df < grid.shape[1]:
                            total = total + weight[:, :, dt + reach, df + across] @ grid[t + dt, f + df]
                out[t, f] = total.relu()
        grid = out
        if layer is mixer.first:
            wide = c.pooling if kind == "conv2d" else 1
            cells = [
                torch.stack([
                    grid[t : t + c.pooling, f : f + wide].flatten(0, 1).amax(0) for f in range(0, grid.shape[1], wide)
                ])
                for t in range(0, grid.shape[0], c.pooling)
            ]  # fmt: skip
            grid = torch.stack(cells)
    expected = grid.amax(0).T.flatten()  # channels before features
    found = mixer(x[None], torch.tensor([13]))[0]
    assert torch.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_after_a_text_changes_nothing(kind: str) -> None:
    model = small(kind).eval()
    tokens, lengths = torch.randint(1, 30, (5, 23)), torch.tensor([23, 3, 1, 11, 6])
    together = model(tokens, lengths)
    alone = torch.cat([model(row[None, :n]) for row, n in zip(tokens, lengths, strict=True)])
    assert torch.allclose(together, alone, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_bf16_reads_texts_of_equal_length(kind: str) -> None:
    model, tokens = small(kind).float().eval(), torch.randint(1, 20, (3, 12))
    with torch.autocast("cpu", torch.bfloat16):
        found = model(tokens)
    torch.testing.assert_close(found.float(), model(tokens), atol=0.05, rtol=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_all_parameters_train(kind: str) -> None:
    model = small(kind, labels=("a", "b", "c"), hidden=8)
    tokens = torch.randint(1, 30, (24, 20))
    F.cross_entropy(model(tokens), torch.arange(24) % 3).backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not still


def test_impossible_settings_are_reported() -> None:
    with pytest.raises(ValueError, match="kind is 'qrnn': expected one of rnn, lstm"):
        SequenceBaselineConfig(kind="qrnn")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="kernel is 4"):
        preset("sequence-baseline/conv1d", kernel=4)
    with pytest.raises(ValueError, match="24 tokens, but the model takes at most 23"):
        small("lstm")(torch.ones(1, 24, dtype=torch.int64))
    with pytest.raises(ValueError, match="unknown preset 'sequence-baseline/qrnn': did you mean sequence-baseline/"):
        preset("sequence-baseline/qrnn")

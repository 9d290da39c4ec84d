"""Recurrent translators with attention: equal to loops over words in NumPy."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from manyheads.core.editing import edit
from manyheads.core.recording import record, record_calculations
from manyheads.models.deep_att import DeepAtt, DeepAttConfig
from manyheads.models.gnmt import GNMT, GNMTConfig
from manyheads.models.rnn_attention import RNNAttention, RNNAttentionConfig

Array = NDArray[np.float64]
TOKENS: dict[str, Any] = {"source_vocab": 13, "target_vocab": 13, "pad": 12, "end": 0, "start": 12}
SOURCE = torch.randint(1, 12, (3, 6), generator=torch.Generator().manual_seed(1))
TARGET = torch.randint(1, 12, (3, 5), generator=torch.Generator().manual_seed(2))
LENGTHS = torch.tensor([6, 2, 4])
KINDS: dict[str, dict[str, Any]] = {
    "bahdanau": {"cell": "gru", "scores": "additive", "order": "before"},
    "luong": {"scores": "dot"},
    "general": {"cell": "rnn", "scores": "general"},
    "fed": {"scores": "dot", "input_feeding": True},
    "two layers": {"layers": 2, "order": "before", "scores": "general"},
}


def model(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "experts":
        sizes: dict[str, Any] = {"layers": 3, "decoder_layers": 2, "experts": 5, "top_k": 2, "expert_size": 7}
        config = GNMTConfig(**TOKENS, width=8, hidden=6, dropout=0.0, feed_forward="experts", **sizes)
        return GNMT(config).double().eval()
    if kind == "deep-att":
        deep = DeepAttConfig(**TOKENS, width=8, hidden=6, layers=3, decoder_layers=2, dropout=0.0)
        return DeepAtt(deep).double().eval()
    if kind == "gnmt":
        return GNMT(GNMTConfig(**TOKENS, width=8, hidden=6, layers=4, dropout=0.0)).double().eval()
    return RNNAttention(RNNAttentionConfig(**TOKENS, width=8, hidden=6, dropout=0.0, **KINDS[kind])).double().eval()


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


class Numbers:
    """The weights of a model as arrays, and its layers as plain formulas."""

    def __init__(self, net: Any) -> None:
        self.weights = {name: w.detach().numpy() for name, w in net.named_parameters()}
        self.attention = net.decoder.cross
        self.scale = net.source_embedding.scale

    def embedded(self, tokens: torch.Tensor) -> Array:
        return self.weights["source_embedding.weight"][tokens.numpy()] * self.scale

    def cell(self, layer: str, suffix: str, x: Array, state: list[Array]) -> list[Array]:
        """One step of an RNN, GRU or LSTM, which differ in the number of gates."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        w, u, b, d = (self.weights[f"{layer}.{name}{suffix}"] for name in names)
        h = state[0]
        inner, outer = w @ x + b, u @ h + d
        size = len(h)
        if len(inner) == size:
            return [np.tanh(inner + outer)]
        if len(inner) == 3 * size:
            reset, update = (sigmoid(inner[i : i + size] + outer[i : i + size]) for i in (0, size))
            new = np.tanh(inner[2 * size :] + reset * outer[2 * size :])
            return [(1 - update) * new + update * h]
        enter, forget, fresh, out = np.split(inner + outer, 4)
        c = sigmoid(forget) * state[1] + sigmoid(enter) * np.tanh(fresh)
        return [sigmoid(out) * np.tanh(c), c]

    def read(self, layer: str, suffix: str, words: list[Array], state: list[Array]) -> tuple[list[Array], list[Array]]:
        outputs = []
        for word in words:
            state = self.cell(layer, suffix, word, state)
            outputs.append(state[0])
        return outputs, state

    def both(self, layer: str, index: int, words: list[Array], zeros: list[Array]) -> tuple[list[Array], list[Array]]:
        """A bidirectional layer: its outputs, and the last states of both directions, joined."""
        forward, first = self.read(layer, f"_l{index}", words, zeros)
        backward, second = self.read(layer, f"_l{index}_reverse", words[::-1], zeros)
        joined = [np.concatenate(pair) for pair in zip(forward, backward[::-1], strict=True)]
        return joined, [np.concatenate(pair) for pair in zip(first, second, strict=True)]

    def context(self, state: Array, memory: list[Array]) -> Array:
        scores = []
        for value in memory:
            if self.attention.score is not None:
                hidden = self.weights["decoder.cross.query.weight"] @ state + self.weights["keys.weight"] @ value
                scores.append(self.weights["decoder.cross.score.weight"][0] @ np.tanh(hidden))
            else:
                query = state if self.attention.query is None else self.weights["decoder.cross.query.weight"] @ state
                scores.append(query @ value)
        return softmax(np.array(scores)) @ np.array(memory)

    def project(self, vector: Array) -> Array:
        return self.weights["source_embedding.weight"] @ vector + self.weights["output_bias"]


def attentive_logits(net: RNNAttention, source: torch.Tensor, target: torch.Tensor) -> Array:
    c, n = net.config, Numbers(net)
    parts = 2 if c.cell == "lstm" else 1
    memory, states = list(n.embedded(source)), []
    for layer in range(c.layers):
        memory, last = n.both("encoder", layer, memory, [np.zeros(c.hidden // 2)] * parts)
        states.append(last)
    vector, logits = np.zeros(c.width), []
    for word in n.embedded(target):
        context = n.context(states[-1][0], memory)
        fed = context if c.order == "before" else vector if c.input_feeding else np.zeros(0)
        x = np.concatenate([word, fed])
        for layer in range(c.layers):
            states[layer] = n.cell("decoder.cell", f"_l{layer}", x, states[layer])
            x = states[layer][0]
        context = context if c.order == "before" else n.context(x, memory)
        vector = np.tanh(n.weights["decoder.combine.weight"] @ np.concatenate([context, x]))
        logits.append(n.project(vector))
    return np.array(logits)


def mixture(n: Numbers, name: str, x: Array, top: int) -> Array:
    """Noiseless top-k gating of Shazeer 2017: a softmax over the logits of the best experts only."""
    scores = n.weights[f"{name}.router.weight"] @ x
    best = np.argsort(-scores)[:top]
    mixed = np.zeros_like(x)
    for gate, expert in zip(softmax(scores[best]), best, strict=True):
        up, down = f"{name}.expand.{expert}", f"{name}.contract.{expert}"
        hidden = np.maximum(n.weights[f"{up}.weight"] @ x + n.weights[f"{up}.bias"], 0)
        mixed += gate * (n.weights[f"{down}.weight"] @ hidden + n.weights[f"{down}.bias"])
    return mixed


def expert_logits(net: GNMT, source: torch.Tensor, target: torch.Tensor) -> Array:
    c, n = net.config, Numbers(net)
    zeros = [np.zeros(c.hidden)] * 2
    x, _ = n.both("encoder.0", 0, list(n.embedded(source)), [np.zeros(c.hidden // 2)] * 2)
    x = [a + b for a, b in zip(n.read("encoder.1", "_l0", x, zeros)[0], x, strict=True)]
    x = [word + sigmoid(mixture(n, "mixture.experts", word, c.top_k)) for word in x]
    memory = [a + b for a, b in zip(n.read("encoder.2", "_l0", x, zeros)[0], x, strict=True)]
    low, high, logits = zeros, zeros, []
    for word in n.embedded(target):
        context = n.context(low[0], memory)
        low = n.cell("decoder.lowest", "_l0", np.concatenate([word, context]), low)
        y = low[0] + sigmoid(mixture(n, "decoder.mixture.experts", low[0], c.top_k))
        high = n.cell("decoder.layers.0", "_l0", np.concatenate([y, context]), high)
        logits.append(n.project(n.weights["combine.weight"] @ (high[0] + y) + n.weights["combine.bias"]))
    return np.array(logits)


def deep_att_logits(net: DeepAtt, source: torch.Tensor, target: torch.Tensor) -> Array:
    """Fast-forward connections, computed from the products f of the layers."""
    c, n = net.config, Numbers(net)
    size = c.hidden
    zeros = [np.zeros(size)] * 2

    def above(layer: str, x: Array, h: Array) -> Array:
        return np.concatenate([(n.weights[f"{layer}.weight_ih_l0"] @ x)[: 2 * size], h])

    tops = []
    for column in range(2):
        words = list(n.embedded(source))
        for k in range(c.layers):
            name, step = f"columns.{column}.{k}", -1 if (k + column) % 2 else 1
            read = n.read(name, "_l0", words[::step], zeros)[0][::step]
            words = [above(name, x, h) for x, h in zip(words, read, strict=True)]
        tops.append(words)
    memory = [n.weights["memory.weight"] @ np.concatenate(pair) for pair in zip(*tops, strict=True)]
    states: list[list[Array]] = [zeros] * (c.decoder_layers or c.layers)
    logits = []
    for word in n.embedded(target):
        x = np.concatenate([word, n.context(states[0][0], memory)])
        for k in range(len(states)):
            states[k] = n.cell(f"decoder.layers.{k}", "_l0", x, states[k])
            x = above(f"decoder.layers.{k}", x, states[k][0])
        logits.append(n.project(n.weights["combine.weight"] @ x + n.weights["combine.bias"]))
    return np.array(logits)


def gnmt_logits(net: GNMT, source: torch.Tensor, target: torch.Tensor) -> Array:
    c, n = net.config, Numbers(net)
    zeros = [np.zeros(c.hidden)] * 2
    memory, _ = n.both("encoder.0", 0, list(n.embedded(source)), [np.zeros(c.hidden // 2)] * 2)
    for layer in range(1, c.layers):
        outputs, _ = n.read(f"encoder.{layer}", "_l0", memory, zeros)
        memory = [a + b for a, b in zip(outputs, memory, strict=True)] if layer >= 2 else outputs
    states, logits = [zeros] * c.layers, []
    for word in n.embedded(target):
        context = n.context(states[0][0], memory)
        states[0] = n.cell("decoder.lowest", "_l0", np.concatenate([word, context]), states[0])
        x = states[0][0]
        for layer in range(1, c.layers):
            states[layer] = n.cell(f"decoder.layers.{layer - 1}", "_l0", np.concatenate([x, context]), states[layer])
            x = states[layer][0] + x if layer >= 2 else states[layer][0]
        logits.append(n.project(n.weights["combine.weight"] @ x + n.weights["combine.bias"]))
    return np.array(logits)


DEEP: dict[str, Any] = {"gnmt": gnmt_logits, "experts": expert_logits, "deep-att": deep_att_logits}


@pytest.mark.parametrize("kind", [*KINDS, *DEEP])
def test_logits_equal_a_loop_over_words(kind: str) -> None:
    net = model(kind)
    expected = DEEP.get(kind, attentive_logits)
    logits = net(SOURCE, LENGTHS, TARGET).detach().numpy()
    for row, length in enumerate(LENGTHS.tolist()):
        np.testing.assert_allclose(logits[row], expected(net, SOURCE[row, :length], TARGET[row]), atol=1e-12)


@pytest.mark.parametrize("kind", ["bahdanau", "luong", "fed", *DEEP])
def test_a_recorded_map_has_one_row_per_target_position(kind: str) -> None:
    net = model(kind)
    plain = net(SOURCE, LENGTHS, TARGET)
    with record(net) as maps:
        recorded = net(SOURCE, LENGTHS, TARGET)
    torch.testing.assert_close(recorded, plain, rtol=0, atol=1e-12)
    ((name, calls),) = maps.items()
    assert name == "decoder.cross"
    (weights,) = calls
    assert weights.shape == (3, 1, 5, 6)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 1, 5, dtype=torch.float64))
    assert not weights[1, :, :, 2:].any()
    with record(net, queries=[-1]) as maps:
        net(SOURCE, LENGTHS, TARGET)
    torch.testing.assert_close(maps["decoder.cross"][0], weights[:, :, [-1]])


@pytest.mark.parametrize("kind", ["luong", "fed"])
def test_calculations_of_products_are_recorded(kind: str) -> None:
    net = model(kind)
    with record_calculations(net) as calculations, record(net) as maps:
        net(SOURCE, None, TARGET)
    (inputs,) = calculations["decoder.cross"]
    scores = inputs.scale * inputs.query @ inputs.key.transpose(-2, -1)
    torch.testing.assert_close(scores.softmax(-1), maps["decoder.cross"][0])


@pytest.mark.parametrize("kind", ["bahdanau", "luong"])
def test_edits_apply_at_every_position(kind: str) -> None:
    net = model(kind)

    def first_word(weights: torch.Tensor) -> torch.Tensor:
        edited = torch.zeros_like(weights)
        edited[..., 0] = 1
        return edited

    with edit(net) as change, record(net) as maps:
        change.map(None, None, first_word)
        changed = net(SOURCE, LENGTHS, TARGET)
    assert maps["decoder.cross"][0][..., 0].eq(1).all()
    assert not torch.allclose(changed, net(SOURCE, LENGTHS, TARGET))


def test_impossible_settings() -> None:
    with pytest.raises(ValueError, match="input_feeding=true needs order=after"):
        RNNAttentionConfig(**TOKENS, order="before", input_feeding=True)
    for kind in (RNNAttentionConfig, GNMTConfig):
        with pytest.raises(ValueError, match="hidden is 7: expected an even number"):
            kind(**TOKENS, hidden=7)
    experts: dict[str, Any] = {**TOKENS, "feed_forward": "experts", "top_k": 2}
    with pytest.raises(ValueError, match="feed_forward is experts: expected at least 2 layers of each side"):
        GNMTConfig(**experts, decoder_layers=1)
    with pytest.raises(ValueError, match="top_k is 1: expected at least 2 experts per token"):
        GNMTConfig(**experts | {"top_k": 1})

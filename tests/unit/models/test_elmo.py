"""ELMo: equal to a plain computation for each word, in both directions; its words, its size and its padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyheads.models.adapt import adapt
from manyheads.models.elmo import Elmo, spell
from manyheads.models.presets import build, preset
from manyheads.tasks.outputs import padded
from papers.directions.spelling import spelled_words

TEXTS = ("Don't go to Łódź.", "yes", "an antidisestablishmentarianism")
PUBLISHED = 93_600_864  # parameters of the published model in AllenNLP, without its softmax over words
SIZES: dict[str, Any] = {"width": 6, "hidden": 10, "filters": (3, 4, 5), "highways": 2, "max_characters": 9}


def model(**settings: Any) -> Any:
    torch.manual_seed(0)
    return build(preset("elmo/small", **SIZES, dropout=0.0, **settings)).double().eval()


def encoded(*texts: str) -> tuple[Tensor, Tensor]:
    return padded([spelled_words().encode(text).ids for text in texts], 0)


def spelled(word: str) -> list[int]:
    """The characters of a word by the rules of the published code (`allennlp.modules.elmo`), for 9 characters."""
    middle = {"<s>": [257], "</s>": [258]}.get(word, [byte + 1 for byte in word.encode()][:7])
    found = [259, *middle, 260]
    return found + [261] * (9 - len(found))


def words_of(text: str) -> list[str]:
    for mark in "'.":
        text = text.replace(mark, f" {mark} ")
    return ["<s>", *text.split(), "</s>"]


def naive_layers(net: Elmo, text: str) -> list[Tensor]:
    """The layers of one text: each word alone, and PyTorch's cells in loops."""
    vectors = []
    for word in words_of(text):
        x = net.encoder.embedding.weight[spelled(word)]  # (C, E)
        found = []
        for layer in net.encoder.convolutions:
            assert isinstance(layer, nn.Conv1d)
            width = layer.kernel_size[0]
            assert layer.bias is not None
            windows = [x[first : first + width].T for first in range(len(x) - width + 1)]
            sums = [(layer.weight * window).sum((1, 2)) + layer.bias for window in windows]
            found.append(torch.stack(sums).max(0).values.relu())
        y = torch.cat(found)
        for layer in net.encoder.highways:
            changed, gate = layer(y).split(len(y))
            y = gate.sigmoid() * y + (1 - gate.sigmoid()) * changed.relu()
        vectors.append(net.encoder.project(y))
    layers = [[torch.stack(vectors)] * 2]
    for index in range(net.config.layers):
        pair = []
        for direction, stack in enumerate(net.directions):
            assert isinstance(stack, nn.ModuleList)
            layer = stack[index]
            assert isinstance(layer, nn.LSTM)
            weights: dict[str, Any] = dict(layer.named_parameters())
            inputs, outputs = layers[-1][direction], {}
            state, cell = torch.zeros(6, dtype=x.dtype), torch.zeros(10, dtype=x.dtype)
            positions = range(len(inputs))
            for at in positions if direction == 0 else reversed(positions):
                gates = F.linear(inputs[at], weights["weight_ih_l0"], weights["bias_ih_l0"])
                i, f, g, o = (gates + F.linear(state, weights["weight_hh_l0"], weights["bias_hh_l0"])).split(10)
                cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
                state = weights["weight_hr_l0"] @ (o.sigmoid() * cell.tanh())
                outputs[at] = state + inputs[at] if index else state
            pair.append(torch.stack([outputs[at] for at in positions]))
        layers.append(pair)
    return [torch.cat(pair, -1) for pair in layers]


def test_layers_equal_a_loop_over_words() -> None:
    net = model()
    layers, counts = net.states(*encoded(*TEXTS))
    with torch.no_grad():
        net.mixture.copy_(torch.tensor([0.3, -1.0, 0.5]))
        net.scale.fill_(1.7)
    mixed = net(*encoded(*TEXTS))
    for row, text in enumerate(TEXTS):
        expected = naive_layers(net, text)
        assert counts[row] == len(words_of(text))
        for found, layer in zip(layers, expected, strict=True):
            torch.testing.assert_close(found[row, : counts[row]], layer, rtol=0, atol=1e-12)
        shares = torch.tensor([0.3, -1.0, 0.5]).double().softmax(0)
        mean = 1.7 * sum(share * layer for share, layer in zip(shares, expected, strict=True))
        torch.testing.assert_close(mixed[row, : counts[row]], mean, rtol=0, atol=1e-7)


def test_characters_are_those_of_the_published_code() -> None:
    characters, counts = spell(*encoded(*TEXTS), width=9)
    assert counts is not None
    for row, text in enumerate(TEXTS):
        assert characters[row, : counts[row]].tolist() == [spelled(word) for word in words_of(text)]
        assert not characters[row, counts[row] :].any()


def test_a_batch_equals_single_texts() -> None:
    net = model(head="sequence", labels=("no", "yes"))
    together = net(*encoded(*TEXTS))
    for row, text in enumerate(TEXTS):
        ids, lengths = encoded(text)
        torch.testing.assert_close(net(ids), together[[row]], rtol=0, atol=1e-12)
        torch.testing.assert_close(net(ids, lengths), together[[row]], rtol=0, atol=1e-12)


def test_no_direction_reads_the_words_that_it_predicts() -> None:
    net = model(head="words", words=20)
    first, second = (net(*encoded(text))[0] for text in ("one two three four", "one two seven four"))
    changed = [(first[:, part] - second[:, part]).abs().amax(1) > 0 for part in (slice(6), slice(6, 12))]
    # The words are <s> one two three four </s>: the forward direction changes from "three" on, the other up to it.
    assert changed[0].tolist() == [False, False, False, True, True, True]
    assert changed[1].tolist() == [True, True, True, True, False, False]


@pytest.mark.parametrize("settings", [{"head": "sequence", "labels": ("no", "yes")}, {"head": "words", "words": 20}])
def test_every_parameter_has_a_gradient(settings: dict[str, Any]) -> None:
    net = model(**settings).train()
    outputs = net(*encoded(*TEXTS))
    logits = outputs if "labels" in settings else net.output(outputs.unflatten(-1, (2, 6)))
    (logits * torch.randn_like(logits)).sum().backward()
    assert [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_the_size_is_the_published_one() -> None:
    with torch.device("meta"):
        net = build(preset("elmo/original"))
    second_biases = sum(p.numel() for name, p in net.named_parameters() if "bias_hh" in name)
    mixture = net.mixture.numel() + net.scale.numel()
    assert sum(p.numel() for p in net.parameters()) - second_biases - mixture == PUBLISHED


def test_a_classifier_keeps_the_pretrained_weights() -> None:
    net = model(head="words", words=20)
    classifier, new = adapt(net, head="sequence", labels=("no", "yes"))
    assert new == ["mixture", "scale", "output.weight", "output.bias"]
    torch.testing.assert_close(
        classifier.double().states(*encoded("yes"))[0][-1], net(*encoded("yes")), rtol=0, atol=1e-6
    )


def test_impossible_settings() -> None:
    with pytest.raises(ValueError, match="hidden is 6: expected more units than the width, 6"):
        preset("elmo/small", width=6, hidden=6)
    for head, field in (("words", "words"), ("sequence", "labels")):
        with pytest.raises(ValueError, match=f"head is {head}: expected also {field}"):
            preset("elmo/small", head=head)
    with pytest.raises(ValueError, match="filters are 4: expected 1 to 3 widths"):
        preset("elmo/small", filters=(1, 1, 1, 1), max_characters=3)

"""Translators without self-attention: steps with a cache, whose rows are selected, equal the whole target at once."""

from typing import Any

import pytest
import torch

from manyheads.models.presets import build, preset

TOKENS: dict[str, Any] = {"source_vocab": 13, "target_vocab": 13, "pad": 12, "end": 0, "start": 12}
SOURCE = torch.randint(1, 12, (3, 6), generator=torch.Generator().manual_seed(1))
TARGET = torch.randint(1, 12, (3, 11), generator=torch.Generator().manual_seed(2))
LENGTHS = torch.tensor([6, 2, 4])
LAYERS: dict[str, Any] = {"encoder_layers": 2, "decoder_layers": 3, "encoder_kernel": 3}
CASES: list[tuple[str, dict[str, Any]]] = [
    *(("seq2seq-rnn/tiny", {"cell": cell}) for cell in ("rnn", "lstm", "gru")),
    ("rnn-attention/bahdanau", {}),
    ("rnn-attention/bahdanau", {"cell": "lstm", "layers": 2, "scores": "general"}),
    *(("rnn-attention/luong", {"input_feeding": feeding}) for feeding in (False, True)),
    ("gnmt/tiny", {}),
    ("gnmt/experts", {"experts": 5, "top_k": 2, "expert_size": 7}),
    ("deep-att/rival", {"layers": 3, "decoder_layers": 2}),
    *(("convs2s/rival", {**LAYERS, "decoder_kernel": kernel}) for kernel in (1, 4)),
    *(("bytenet/rival", {"sets": 1, "decoder_kernel": kernel}) for kernel in (1, 3)),
]


@pytest.mark.parametrize(("name", "more"), CASES)
def test_cached_steps_equal_the_whole_target(name: str, more: dict[str, Any]) -> None:
    torch.manual_seed(0)
    net = build(preset(name, **TOKENS, **{"width": 8, "hidden": 6} | more)).double().eval()
    with torch.no_grad():
        for parameter in net.parameters():  # norms begin at ones and zeros
            parameter.add_(0.1 * torch.randn_like(parameter))
    whole = net(SOURCE, LENGTHS, TARGET)
    cache, rows = net.start(SOURCE, LENGTHS, 11), torch.tensor([2, 2, 0, 1])
    torch.testing.assert_close(net.step(TARGET[:, :2], cache), whole[:, :2], rtol=0, atol=1e-12)
    cache.select(rows)
    for first, end in ((2, 3), (3, 11)):
        step = net.step(TARGET[rows, first:end], cache)
        torch.testing.assert_close(step, whole[rows, first:end], rtol=0, atol=1e-12)
    assert cache.lengths.tolist() == [11] * 4

"""Encoder-decoders of two recurrent networks: equal to PyTorch's cells step by step, and step by step as at once."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from manyheads.core.recurrent import Cell, reverse_texts
from manyheads.models.seq2seq_rnn import Seq2SeqRNN, Seq2SeqRNNConfig

TOKENS: dict[str, Any] = {"source_vocab": 13, "target_vocab": 13, "pad": 12, "end": 0, "start": 12}
SOURCE = torch.randint(1, 12, (3, 6), generator=torch.Generator().manual_seed(1))
TARGET = torch.randint(1, 12, (3, 5), generator=torch.Generator().manual_seed(2))
LENGTHS = torch.tensor([6, 2, 4])
ONE_CELL: dict[str, Any] = {"rnn": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}


def model(cell: Cell = "lstm", **more: Any) -> Seq2SeqRNN:
    torch.manual_seed(0)
    return Seq2SeqRNN(Seq2SeqRNNConfig(**TOKENS, cell=cell, width=8, layers=2, dropout=0.0, **more)).eval()


def cells(layer: nn.RNNBase, kind: str) -> list[nn.Module]:
    """Return PyTorch's single cells with the weights of each layer."""
    found = []
    for index in range(layer.num_layers):
        suffix = f"_l{index}"
        weights = {name.removesuffix(suffix): w for name, w in layer.named_parameters() if name.endswith(suffix)}
        cell = ONE_CELL[kind](weights["weight_ih"].shape[1], layer.hidden_size)
        cell.load_state_dict(weights)
        found.append(cell)
    return found


def run(layers: list[nn.Module], states: list[Any], x: Tensor) -> tuple[Tensor, list[Any]]:
    """Return the hidden states of the last layer for words x (T, D), one word and one layer at a time."""
    outputs = []
    for word in x:
        h = word[None]
        for index, layer in enumerate(layers):
            states[index] = layer(h, states[index])
            h = states[index][0] if isinstance(states[index], tuple) else states[index]
        outputs.append(h)
    return torch.cat(outputs), states


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
@pytest.mark.parametrize("reverse", [False, True])
def test_logits_equal_pytorch_cells_step_by_step(cell: Cell, reverse: bool) -> None:
    net = model(cell, hidden=6, reverse_source=reverse)
    assert net.combine is not None
    logits = net(SOURCE, LENGTHS, TARGET)
    for row, length in enumerate(LENGTHS.tolist()):
        words = SOURCE[row, :length].flip(0) if reverse else SOURCE[row, :length]
        _, states = run(cells(net.encoder, cell), [None, None], net.source_embedding(words))
        outputs, _ = run(cells(net.decoder, cell), states, net.target_embedding(TARGET[row]))
        torch.testing.assert_close(logits[row], net.project(net.combine(outputs)))


def test_reversing_keeps_padding_behind_the_text() -> None:
    tokens = torch.tensor([[1, 2, 3], [4, 5, 9]])
    assert reverse_texts(tokens, torch.tensor([3, 2])).tolist() == [[3, 2, 1], [5, 4, 9]]
    assert reverse_texts(tokens, None).tolist() == [[3, 2, 1], [9, 5, 4]]


def test_impossible_settings() -> None:
    with pytest.raises(ValueError, match=r"pad is 13: expected an integer from 0 to below target_vocab \(13\)"):
        Seq2SeqRNNConfig(**TOKENS | {"pad": 13})
    with pytest.raises(ValueError, match="layers is 0"):
        Seq2SeqRNNConfig(**TOKENS, layers=0)
    with pytest.raises(ValueError, match="cell is 'elman': expected one of rnn, lstm, gru"):
        Seq2SeqRNNConfig(**TOKENS, cell="elman")  # type: ignore[arg-type]

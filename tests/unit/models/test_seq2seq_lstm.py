"""Encoder-decoder LSTM: equal to PyTorch's for any padding, and step by step as at once."""

import pytest
import torch

from manyheads.models.seq2seq_lstm import Seq2SeqLSTM, Seq2SeqLSTMConfig

CONFIG = Seq2SeqLSTMConfig(vocab=13, pad=12, end=0, start=12, width=8, layers=2, dropout=0.0)
SOURCE = torch.randint(1, 12, (3, 6), generator=torch.Generator().manual_seed(1))
TARGET = torch.randint(1, 12, (3, 5), generator=torch.Generator().manual_seed(2))
LENGTHS = torch.tensor([6, 2, 4])


def model() -> Seq2SeqLSTM:
    torch.manual_seed(0)
    return Seq2SeqLSTM(CONFIG).eval()


def test_the_last_encoder_state_starts_the_decoder() -> None:
    net = model()
    logits = net(SOURCE, LENGTHS, TARGET)
    for row, length in enumerate(LENGTHS.tolist()):
        _, state = net.encoder(net.embedding(SOURCE[row : row + 1, :length]))
        states, _ = net.decoder(net.embedding(TARGET[row : row + 1]), state)
        expected = states @ net.embedding.weight.T + net.output_bias
        torch.testing.assert_close(logits[row : row + 1], expected)


def test_steps_equal_the_whole_with_selected_rows() -> None:
    net = model()
    logits = net(SOURCE, LENGTHS, TARGET)
    cache = net.start(SOURCE, LENGTHS, 5)
    torch.testing.assert_close(net.step(TARGET[:, :2], cache), logits[:, :2])
    cache.select(torch.tensor([2, 0, 0]))
    torch.testing.assert_close(net.step(TARGET[[2, 0, 0], 2:], cache), logits[[2, 0, 0], 2:])
    assert cache.lengths.tolist() == [5, 5, 5]


def test_impossible_settings() -> None:
    with pytest.raises(ValueError, match=r"pad is 13: expected an integer from 0 to below vocab \(13\)"):
        Seq2SeqLSTMConfig(vocab=13, pad=13, end=0, start=1)
    with pytest.raises(ValueError, match="layers is 0"):
        Seq2SeqLSTMConfig(vocab=13, pad=12, end=0, start=1, layers=0)

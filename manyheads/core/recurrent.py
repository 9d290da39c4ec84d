"""Recurrent layers (RNN, LSTM and GRU of PyTorch), and functions for their states and for packed texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

Cell = Literal["rnn", "lstm", "gru"]
# State of a recurrent layer, as PyTorch returns it: (layers * directions, B, H), and a second tensor for an LSTM.
State: TypeAlias = Tensor | tuple[Tensor, ...]


class _InPrecisionOfWeights(nn.RNNBase):
    """Recurrent layer that runs in the precision of its weights on a CPU, even under autocast.

    There, autocast to bf16 does not support a recurrent layer whose input rows all have the same length.
    """

    def forward(self, x: Any, state: State | None = None) -> Any:
        """Return the outputs and states of the layer for x, (B, T, D) or packed."""
        weight = self.weight_ih_l0
        assert isinstance(weight, Tensor)
        if weight.device.type != "cpu":
            return super().forward(x, state)
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.to(weight.dtype), state)


class RNN(_InPrecisionOfWeights, nn.RNN):
    """Simple recurrent layer, h' = tanh(W x + U h + b) (Elman 1990)."""


class LSTM(_InPrecisionOfWeights, nn.LSTM):
    """Long short-term memory (Hochreiter & Schmidhuber 1997)."""


class GRU(_InPrecisionOfWeights, nn.GRU):
    """Gated recurrent unit (Cho 2014). PyTorch applies the reset gate after the product with U, the paper before it."""


CELLS: dict[str, Any] = {"rnn": RNN, "lstm": LSTM, "gru": GRU}


def recurrent_layers(
    cell: Cell, width: int, hidden: int, layers: int = 1, *, directions: int = 1, dropout: float = 0.0
) -> Any:
    """Return recurrent layers from inputs (B, T, width) to outputs (B, T, directions * hidden).

    dropout  dropout between the layers
    """
    return CELLS[cell](
        width, hidden, layers, batch_first=True, bidirectional=directions == 2, dropout=dropout if layers > 1 else 0.0
    )


def pack_texts(x: Tensor, lengths: Tensor | None) -> Tensor | PackedSequence:
    """Return texts x (B, T, D) in packed form for a recurrent layer, which then skips the padding.

    lengths  (B,) number of real tokens of each text. If None, there is no padding, and x is returned
    """
    return x if lengths is None else pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)


def read_texts(layer: nn.RNNBase, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, State]:
    """Return the outputs of a recurrent layer for texts x (B, T, D), (B, T, H), and its last state.

    Outputs at padding are zeros.

    lengths  (B,) number of real tokens of each text. If None, there is no padding
    """
    outputs, state = layer(pack_texts(x, lengths))
    if lengths is not None:
        outputs, _ = pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])
    return outputs, state


def reverse_texts(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the tokens (B, T) or states (B, T, D) of each text in reverse order. Padding remains after the text.

    lengths  number of real tokens of each text, (B,). If None, there is no padding
    """
    if lengths is None:
        return x.flip(1)
    positions, last = torch.arange(x.shape[1], device=x.device), lengths.to(x.device)[:, None] - 1
    order = torch.where(positions <= last, last - positions, positions)  # (B, T)
    return x.gather(1, order.reshape(*order.shape, *[1] * (x.dim() - 2)).expand_as(x))


def batch_first(state: State) -> list[Tensor]:
    """Return the tensors of a state with the rows of the batch first, each (B, layers * directions, H)."""
    return [part.transpose(0, 1) for part in (state if isinstance(state, tuple) else (state,))]


def layers_first(parts: Sequence[Tensor]) -> State:
    """Return the state of a recurrent layer from the tensors that `batch_first` returned for it (inverse function)."""
    state = tuple(part.transpose(0, 1).contiguous() for part in parts)
    return state if len(state) > 1 else state[0]

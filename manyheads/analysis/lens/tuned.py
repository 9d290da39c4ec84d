"""Tuned lens (Belrose 2023): a logit lens with an affine translator for each layer, trained with a frozen model.

The translator of a layer maps its states h to h + h A + b, where A and b are zero at first. It is trained to minimize
KL(last layer || translated layer). The last layer has no translator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from manyheads.analysis.drawing import short_name
from manyheads.analysis.lens.layers import LayerStates, divergence, predictions
from manyheads.core.tensor_file import checksum, write_tensors
from manyheads.displays import html_table
from manyheads.errors import UserError
from manyheads.files import replacing

FORMAT = "manyheads-tuned-lens"
BATCH = 256  # positions per step
RATE = 1e-3  # initial learning rate of Adam, which decreases linearly to zero
POSITIONS = 2**15  # maximum number of positions to train on
NUMBERS = 2**27  # maximum number of values in the states of all layers, which stay in memory; they take 512 MB
MIN_POSITIONS = 100
TENSORS = ("matrices", "biases", "kl")


@dataclass(frozen=True)
class TunedLens:
    """Translators of all layers but the last, for one model.

    model     name of the model
    weights   checksum of the model's weights
    matrices  (L - 1, D, D) matrices A
    biases    (L - 1, D) biases b
    kl        (2, L) mean KL(last layer || layer) in nats at positions that were held out from training, for the logit
              lens and for the tuned lens
    """

    model: str
    weights: str
    matrices: Tensor
    biases: Tensor
    kl: NDArray[np.float32]

    def translate(self, layer: int, states: Tensor) -> Tensor:
        """Return the translated states (..., D) of a layer, where layer 0 is the embeddings."""
        if layer == len(self.matrices):
            return states
        return states + states @ self.matrices[layer].to(states) + self.biases[layer].to(states)

    def rows(self) -> list[list[str]]:
        """Return a text table of the held-out divergences, with one row per layer."""
        names = ["embedding", *(f"layer {layer}" for layer in range(len(self.matrices)))]
        found = zip(names, *self.kl, strict=True)
        return [["KL (nats)", "logit lens", "tuned lens"], *([name, f"{a:.3f}", f"{b:.3f}"] for name, a, b in found)]

    def _repr_html_(self) -> str:
        head, *rows = self.rows()
        return html_table(head, rows)

    def save(self, path: str | Path) -> None:
        """Write the translators to a safetensors file."""
        tensors = dict(zip(TENSORS, (self.matrices, self.biases, torch.from_numpy(self.kl)), strict=True))
        about = {"format": FORMAT, "model": self.model, "weights": self.weights}
        with replacing(Path(path)) as temporary, temporary.open("wb") as file:
            write_tensors(file, tensors, about)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module) -> Self:
        """Read the translators of a model. Raises UserError for another file, and for a lens of another model."""
        try:
            with safe_open(path, "pt") as file:
                about = file.metadata() or {}
                if about.get("format") != FORMAT:
                    raise UserError(f"{path}: not a tuned lens: write one with tune_lens (--tune)")
                found = [file.get_tensor(name) for name in TENSORS]
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path}: cannot read a tuned lens: {str(error).splitlines()[0]}") from None
        if about["weights"] != checksum(model.state_dict()):
            raise UserError(f"{path}: this tuned lens was trained for {about['model']}, whose weights are different")
        device = next(model.parameters()).device
        return cls(about["model"], about["weights"], found[0].to(device), found[1].to(device), found[2].numpy())


Tuned: TypeAlias = TunedLens | str | Path | None  # a tuned lens, or its file


@torch.enable_grad()
def tune(inputs: Iterable[LayerStates], model: nn.Module, name: str, *, steps: int, seed: int) -> TunedLens:
    """Train a tuned lens. The last tenth of the positions is held out to measure the divergences.

    inputs  states of each text
    name    name of the model directory
    steps   number of training steps, with 256 positions each

    Raises UserError for fewer than 100 positions.
    """
    states, logits = _gather(inputs)  # states of all positions, (L, N, D)
    count, (layers, _, width) = states.shape[1] - states.shape[1] // 10, states.shape
    matrices = [states.new_zeros(width, width, requires_grad=True) for _ in range(layers - 1)]
    biases = [states.new_zeros(width, requires_grad=True) for _ in range(layers - 1)]
    optimizer = torch.optim.Adam([*matrices, *biases], RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    random = torch.Generator().manual_seed(seed)

    def log_p(states: Tensor) -> Tensor:
        return logits(states[None])[0].float().log_softmax(-1)

    for _ in range(steps):
        batch = states[:, torch.randint(count, (BATCH,), generator=random).to(states.device)]
        with torch.no_grad():
            last = log_p(batch[-1])  # (BATCH, V)
        for given, matrix, bias in zip(batch, matrices, biases, strict=False):
            # One layer at a time, so that only its logits are in memory. The model gets no gradients.
            loss = divergence(last, log_p(given + given @ matrix + bias)).mean()
            matrix.grad, bias.grad = torch.autograd.grad(loss, [matrix, bias])
        optimizer.step()
        schedule.step()
    tuned = torch.stack(matrices).detach(), torch.stack(biases).detach()
    lens = TunedLens(short_name(name), checksum(model.state_dict()), *tuned, np.empty((2, 0), dtype=np.float32))
    held_out = LayerStates(list(states[:, None, count:]), logits)
    kl = [predictions(held_out, 1, translate).kl.mean(1) for translate in (None, lens.translate)]
    return replace(lens, kl=np.stack(kl))


def _gather(inputs: Iterable[LayerStates]) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return the states of all inputs, (L, N, D), up to the maximum number of positions, and the function to logits."""
    gathered: list[LayerStates] = []
    count = 0
    for each in inputs:
        gathered.append(each)
        layers, (_, positions, width) = len(each.states), each.states[0].shape
        count += positions
        if count >= min(POSITIONS, NUMBERS // (layers * width)):
            break
    if count < MIN_POSITIONS:
        raise UserError(f"found {count} tokens to tune a lens on: expected at least {MIN_POSITIONS}. Give more text")
    return torch.cat([torch.cat(each.states).float() for each in gathered], 1), gathered[0].logits

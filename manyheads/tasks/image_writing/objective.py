"""Training objective of an iGPT: the cross-entropy of the next pixel's color."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from manyheads import directory
from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import Lazy
from manyheads.data.images.augmentation import epoch_order
from manyheads.data.images.palette import Palette
from manyheads.models.igpt import IGPT
from manyheads.tasks.language.objective import SCORED_TOKENS, Batch
from manyheads.training.distributed_map import distributed_map
from manyheads.training.loss import smoothed_cross_entropy
from manyheads.training.objective import Better, Loss

Ids = NDArray[np.int64]


class ImageWritingObjective:
    """Training task of an iGPT for images (M, N) of N color ids.

    palette  colors of the ids, which are saved with the model
    """

    unit: ClassVar = "pixels"
    metrics: ClassVar[Mapping[str, Better]] = {"loss": "lower", "bits_per_pixel": "lower"}

    def __init__(
        self, model: IGPT, palette: Palette, train: Ids, validation: Ids, *, compute: ComputeConfig, batch_items: int,
        seed: int,
    ) -> None:  # fmt: skip
        self.model, self.palette, self.compute = model.to(compute.device), palette, compute
        self._train, self._validation, self._batch_items, self._seed = train, validation, batch_items, seed
        self._hidden = compute.compile(model.hidden)

    def batches(self, epoch: int) -> Sequence[Batch]:
        order = epoch_order(len(self._train), self._seed, epoch)[:, 0]
        rows = np.array_split(order, -(-len(order) // self._batch_items))
        return Lazy(rows, lambda rows: batch_of(self.model, self._train[rows]))

    def loss(self, batch: Batch) -> Loss:
        hidden = self._hidden(batch.read.to(self.compute.device)).flatten(0, 1)
        target = batch.write.to(self.compute.device).flatten()
        total = smoothed_cross_entropy(hidden, self.model.output_weight, None, target, smoothing=0.0, pad=None)
        return Loss(total, batch.items)

    def validate(self) -> dict[str, float]:
        loss = float(pixel_losses(self.model, self._validation, self.compute).mean())
        return {"loss": loss, "bits_per_pixel": loss / math.log(2)}

    def save(self, out: Path) -> str:
        return directory.save(out, self.model, preprocessing=self.palette.as_dict())


def batch_of(model: IGPT, ids: Ids) -> Batch:
    """Return a batch of images (B, N). The model reads the start token instead of the last pixel."""
    write = torch.from_numpy(ids)
    return Batch(F.pad(write[:, :-1], (1, 0), value=model.start_token), write)


def pixel_losses(model: IGPT, ids: Ids, compute: ComputeConfig) -> NDArray[np.float64]:
    """Return the loss -ln p of every pixel of images (M, N), (M, N)."""
    rows = max(1, SCORED_TOKENS // ids.shape[1])

    def losses(first: int) -> NDArray[np.float64]:
        batch = batch_of(model, ids[first : first + rows])
        with torch.inference_mode(), compute.autocast():
            logits = model(batch.read.to(compute.device)).float()
            found = F.cross_entropy(logits.transpose(1, 2), batch.write.to(compute.device), reduction="none")
        return found.double().cpu().numpy()

    return np.concatenate(list(distributed_map(range(0, len(ids), rows), losses)))

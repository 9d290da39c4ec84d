"""Batches in pinned memory keep their type and their values."""

import numpy as np
import pytest
import torch

from manyheads.data.images.loader import ImageBatch
from manyheads.tasks.language.objective import Batch
from manyheads.training.prefetching import pinned


def test_arrays_and_tensors_of_a_batch_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[int, ...]] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tuple(tensor.shape))
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    images = ImageBatch(np.ones((2, 3, 4, 4), np.float32), np.array([0, 1]))
    copied = pinned(images)
    assert isinstance(copied, ImageBatch)
    assert isinstance(copied.images, np.ndarray)
    assert not np.shares_memory(copied.images, images.images)
    np.testing.assert_array_equal(copied.labels, images.labels)
    text = pinned(Batch(torch.ones(2, 5), torch.zeros(2, 5)))
    assert isinstance(text.read, torch.Tensor)
    assert found == [(2, 3, 4, 4), (2,), (2, 5), (2, 5)]
    assert pinned("something else") == "something else"

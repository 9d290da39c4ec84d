"""Division of a batch among ranks, and the results that each rank computes."""

import numpy as np
import pytest
import torch

from manyheads.data.batching import Lazy
from manyheads.data.images.augmentation import Augmentation
from manyheads.data.images.loader import ImageLoader
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.data.images.source import ImageSource
from manyheads.training.distributed_map import distributed_map, read_once
from manyheads.training.objective import Loss, LossPart


def test_parts_of_a_batch_equal_the_batch() -> None:
    rows = [np.arange(7), np.array([4, 9]), np.array([3])]
    batches: Lazy[list[int]] = Lazy(rows, lambda of_batch: of_batch.tolist())
    for world in (1, 2, 3, 4, 8):
        for index, whole in enumerate(rows):
            parts = [batches.part(index, rank, world) for rank in range(world)]
            assert sorted(row for part, counted in parts if counted for row in part) == sorted(whole)
            assert all(part == [whole[0]] for part, counted in parts if not counted)
            sizes = [len(part) * counted for part, counted in parts]
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("workers", [0, 1])
def test_mixing_parts_of_an_image_batch_equals_mixing_the_whole(workers: int) -> None:
    data = ImageSource(seed=1).read().train.subset(range(23))
    preparing = Preprocessing.of_channels(8, 1, mean=(0.5,), std=(0.5,))
    mixing = Augmentation(crop="padded", mixup=0.8, cutmix=1.0)
    loader, other = (
        ImageLoader(data, data.names, preparing, batch_items=12, augmentation=mixing, seed=5, workers=count)
        for count in (0, workers)
    )
    whole, parts = loader.epoch(1), other.epoch(1)
    for index in range(len(whole)):
        expected = whole[index]
        for world in (2, 5, 30):
            for rank in range(world if workers == 0 else 1):
                part, counted = parts.part(index, rank, world)  # type: ignore[attr-defined]
                rows = slice(rank, None, world) if counted else slice(0, 1)
                assert counted == (rank < len(expected.images))
                np.testing.assert_array_equal(part.images, expected.images[rows])
                np.testing.assert_array_equal(part.labels, expected.labels[rows])
    other.close()


def test_means_over_different_counts_are_combined() -> None:
    words, follows = torch.rand(7, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    loss = Loss(words.sum(), 7, others=(LossPart(follows.sum(), 3),))
    torch.testing.assert_close(loss.mean, words.mean() + follows.mean())
    torch.testing.assert_close(loss.scaled((7, 3)) / 7, loss.mean)
    parts = [(words[:2], follows[:2]), (words[2:], follows[2:])]
    sums = [Loss(a.sum(), len(a), others=(LossPart(b.sum(), len(b)),)).scaled((7, 3)) for a, b in parts]
    torch.testing.assert_close(torch.stack(sums).sum() / 7, loss.mean)


def test_one_process_computes_all_batches_in_order() -> None:
    assert [*distributed_map(range(5), lambda n: n * n)] == [0, 1, 4, 9, 16]
    assert [*distributed_map([], lambda n: n)] == []
    assert [*read_once(iter("abc"))] == ["a", "b", "c"]

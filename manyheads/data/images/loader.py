"""Batches of images.

Worker processes decode and augment the images; the batches do not depend on the number of workers.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from manyheads.data.batching import balanced_rows, part_of
from manyheads.data.images.augmentation import Augmentation, batch_random, epoch_order, item_random
from manyheads.data.images.checking import open_image
from manyheads.data.images.labeled_images import ImageData
from manyheads.data.images.preprocessing import Preprocessing
from manyheads.data.images.store import Stored
from manyheads.data.images.tar import Member
from manyheads.errors import UserError, shown

_BATCHES_AHEAD = 2  # number of batches that are prepared in advance for each worker process


@dataclass(frozen=True)
class ImageBatch:
    """Batch of normalized images with their labels.

    The fields are NumPy arrays, so that workers do not import torch. `torch.from_numpy` converts them without a
    copy.

    images  (B, C, Y, X)
    labels  (B,) class index of each image, or a number for regression; (B, L) probability of each class if images are
            mixed, or 0 and 1 for each class of a multi-label model
    """

    images: NDArray[np.float32]
    labels: NDArray[np.int64] | NDArray[np.float32]

    @property
    def items(self) -> int:
        """Number of images over which the loss is summed."""
        return len(self.labels)


@dataclass(frozen=True)
class _Maker:
    """Factory that creates the batches of any epoch.

    Each worker process has a copy of this object. It contains only the locations of the images, not the images.
    """

    sources: list[Path | Member | Stored | NDArray[np.uint8]]
    labels: NDArray[Any]
    classes: int
    preprocessing: Preprocessing
    augmentation: Augmentation | None
    batch_items: int
    seed: int
    balanced: bool

    @property
    def batches(self) -> int:
        return -(-len(self.sources) // self.batch_items)

    def order(self, epoch: int) -> list[NDArray[np.int64]]:
        """Return the batches of an epoch, each as an array (B, 2) of image indices and indices of augmented copies."""
        if self.augmentation is None:
            items = np.arange(len(self.sources))
            order = np.stack([items, np.zeros_like(items)], axis=1)
        elif self.balanced:
            items = balanced_rows(self.labels, self.seed, epoch)
            order = np.stack([items, np.arange(len(items))], axis=1)
        else:
            order = epoch_order(len(self.sources), self.seed, epoch, self.augmentation.repeats)
        # Batches of nearly equal sizes prevent a last batch with a single image.
        return np.array_split(order, self.batches)

    def __call__(self, epoch: int, batch: int, rows: NDArray[np.int64], local_rows: NDArray[np.int64]) -> ImageBatch:
        """Create the part of a batch that one rank processes.

        rows        (B, 2) image index and copy index of each row of the whole batch
        local_rows  indices of the rows to return. Another row is decoded only if mixup or cutmix combines it with one
                    of these rows
        """
        mixes = self.augmentation is not None and self.augmentation.mixes
        partners = len(rows) - 1 - local_rows
        needed = np.union1d(local_rows, partners) if mixes else local_rows
        decoded = np.stack([self._image(epoch, int(item), int(copy)) for item, copy in rows[needed]])  # (N, C, Y, X)
        labels = self.labels[rows[:, 0]]
        if self.augmentation is None or not mixes:
            return ImageBatch(decoded, labels[local_rows])
        random = batch_random(self.seed, epoch, batch)
        images, others = (
            decoded[np.searchsorted(needed, indices)] for indices in (local_rows, partners)
        )  # (B, C, Y, X)
        mixed = self.augmentation.batch(images, labels[local_rows], self.classes, random, (others, labels[partners]))
        return ImageBatch(*mixed)

    def _image(self, epoch: int, item: int, copy: int) -> NDArray[np.float32]:
        image = open_image(self.sources[item])
        if self.augmentation is None:
            return self.preprocessing.array(image)
        return self.augmentation.image(image, self.preprocessing, item_random(self.seed, epoch, item, copy))


class ImageLoader:
    """Data loader of image batches.

    labels        label names of the model, in the order of class indices
    augmentation  random augmentation for training. If None, images are not augmented and remain in the order of the
                  data, for evaluation
    batch_items   maximum number of images per batch. Batches may have one image fewer, so that their sizes are nearly
                  equal
    workers       number of processes that decode and augment images until `close` is called. If 0, the current process
                  does so
    truth         targets in place of class indices: a number for each image (N,), or 0 and 1 for each label (N, L). If
                  None, the target of an image is the class index of its label
    balanced      if True, draw the images of each epoch at random, so that all classes are equally frequent

    The content and the order of the batches depend only on the seed and the epoch. Raises UserError for a label that
    is not in `labels`.
    """

    def __init__(
        self,
        data: ImageData,
        labels: Sequence[str],
        preprocessing: Preprocessing,
        *,
        batch_items: int,
        augmentation: Augmentation | None = None,
        seed: int = 0,
        workers: int = 0,
        truth: NDArray[np.float32] | None = None,
        balanced: bool = False,
    ) -> None:
        numbers = _class_indices(data, labels) if truth is None else truth
        sources = [item.source for item in data.items]
        self._maker = _Maker(sources, numbers, len(labels), preprocessing, augmentation, batch_items, seed, balanced)
        self._workers, self._pool = workers, None if workers == 0 else _pool(workers, self._maker)

    @property
    def labels(self) -> NDArray[Any]:
        """Targets of all images in the order of the data: class indices (N,), or the argument `truth`.

        This is also the order of the batches in evaluation. Reading the targets decodes no image.
        """
        return self._maker.labels

    def epoch(self, epoch: int = 0) -> Sequence[ImageBatch]:
        """Return the sequence of batches of an epoch.

        A batch is created when it is indexed; workers prepare the next batches.
        """
        return _Epoch(self._maker, epoch, self._pool, _BATCHES_AHEAD * self._workers)

    def close(self) -> None:
        """Stop the worker processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _class_indices(data: ImageData, labels: Sequence[str]) -> NDArray[np.int64]:
    index = {label: i for i, label in enumerate(labels)}
    for i, label in enumerate(data.labels):
        if label not in index:
            fault = f"{data.place(i)}: expected a label of the model ({shown(labels, 8)}), found {label!r}"
            raise UserError(f"{fault}; correct it, or remove the image")
    return np.array([index[label] for label in data.labels], dtype=np.int64)


class _Epoch(Sequence[ImageBatch]):
    def __init__(self, maker: _Maker, epoch: int, pool: ProcessPoolExecutor | None, ahead: int) -> None:
        self._maker, self._epoch, self._pool, self._ahead = maker, epoch, pool, ahead
        self._order = maker.order(epoch)
        self._pending: dict[int, Future[ImageBatch]] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, index: int) -> ImageBatch:  # type: ignore[override]  # no slices
        return self.part(range(len(self))[index], 0, 1)[0]

    def part(self, index: int, rank: int, world: int) -> tuple[ImageBatch, bool]:
        """Return the part of a batch for one rank, and whether the loss of this part counts (see `Lazy.part`).

        The rank must be the same in all calls during an epoch.
        """
        owns_rows = rank < len(self._order[index])

        def job(i: int) -> tuple[int, int, NDArray[np.int64], NDArray[np.int64]]:
            local_rows = part_of(len(self._order[i]), rank, world)
            return self._epoch, i, self._order[i], local_rows if len(local_rows) else np.zeros(1, dtype=np.int64)

        if self._pool is None:
            return self._maker(*job(index)), owns_rows
        needed_batches = range(index, min(index + self._ahead, len(self)))
        for obsolete in [i for i in self._pending if i not in needed_batches]:
            self._pending.pop(obsolete).cancel()
        try:
            for i in needed_batches:
                if i not in self._pending:
                    self._pending[i] = self._pool.submit(_make, *job(i))
            return self._pending.pop(index).result(), owns_rows
        except BrokenProcessPool:
            raise UserError(
                "a process that prepares images was terminated externally, possibly because memory ran out; "
                "resume with fewer"
                " workers"
            ) from None


_worker_maker: _Maker | None = None  # object that makes the batches in the current worker process


def _pool(workers: int, maker: _Maker) -> ProcessPoolExecutor:
    # Start workers with spawn: fork would copy locks that other threads (of torch or the training loop) may hold.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, context, initializer=_start, initargs=(maker,))


def _start(maker: _Maker) -> None:
    global _worker_maker
    _worker_maker = maker
    # Each worker gets a separate process group: torchrun sends SIGTERM to the group of the training process, which
    # still needs its workers.
    os.setpgrp()
    # The training loop itself handles Ctrl-C and a closed terminal, and then stops its workers.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Exit this worker when its parent process ends. Otherwise it would wait forever if the parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _make(epoch: int, batch: int, rows: NDArray[np.int64], local_rows: NDArray[np.int64]) -> ImageBatch:
    assert _worker_maker is not None
    return _worker_maker(epoch, batch, rows, local_rows)

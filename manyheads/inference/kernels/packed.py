"""Packed weights for the fused inference kernels, and the threads that run the kernels."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from manyheads.inference.kernels.arguments import Scratch, Weights, work_size
from manyheads.inference.kernels.processor import BF16, COLUMNS, FLOAT32, INT8, MAX_ROWS

KINDS = {"float32": FLOAT32, "bf16": BF16, "int8": INT8}
PER_WORD = {FLOAT32: 1, BF16: 2, INT8: 4}  # number of values of each precision in 4 bytes
RELEASE = 1 << 62  # counter value that ends all waiting: it is larger than any value for which a thread waits
MAX_SERIAL = 2_000_000  # number of multiplications below which one thread is faster than several
MAX_WEIGHT = 127.0  # maximum of an 8-bit weight; weights are signed, activations are unsigned


def pack(weight: Tensor, kind: int, out: Tensor) -> tuple[Tensor, Tensor]:
    """Pack a weight matrix (N, K) into 32-bit words. Return the scale factor and the sum of each row, (N,) each.

    In 8 bits, a row is stored as round(weight / factor), where the largest number is +-127; the sums are the sums of
    these 8-bit numbers.

    kind  precision of the packed weights
    out   (N / COLUMNS, K / count, COLUMNS) words, where `count` is the number of values in a word
    """
    rows = len(weight)
    factors, sums = torch.ones(rows), torch.zeros(rows, dtype=torch.int32)
    weight = weight.detach().float()
    if kind == INT8:
        factors = weight.abs().amax(1) / MAX_WEIGHT
        factors = torch.where(factors == 0, 1.0, factors)  # Do not divide a row of zeros by 0. NaN remains NaN.
        weight = torch.nan_to_num(weight / factors[:, None]).round().to(torch.int8)
        sums = weight.sum(1, dtype=torch.int32)
    elif kind == BF16:
        weight = weight.bfloat16()
    words, full = weight.contiguous().view(torch.int32), rows // COLUMNS
    out[:full].copy_(words[: full * COLUMNS].view(full, COLUMNS, words.shape[1]).transpose(1, 2))
    out[full:] = 0
    out[full:, :, : rows - full * COLUMNS] = words[full * COLUMNS :].T
    return factors, sums


Layer: TypeAlias = tuple[Sequence[Tensor], Sequence[tuple[Tensor, Tensor | None]]]


def pack_weights(
    layers: Sequence[Layer],
    kind: int,
    norm: tuple[Tensor, Tensor] | None,
    eps: Sequence[float],
    scales: Sequence[float],
) -> Weights:
    """Pack the weights of all layers of a stack. All layers must have the same shapes.

    layers  norms (weight, bias, weight, ...) and matrix products (weight, bias) of each layer
    kind    precision of the packed weights
    norm    weight and bias of the final norm
    eps     epsilon of the layers' norms and of the final norm
    scales  factors of the attention scores of self-attention and cross-attention
    """
    shapes = [(-(-len(weight) // COLUMNS), weight.shape[1] // PER_WORD[kind], COLUMNS) for weight, _ in layers[0][1]]
    # NumPy allocates memory in large pages. The kernels read these a third faster.
    packed = np.empty((len(layers), 4 * sum(map(math.prod, shapes))), np.uint8)
    floats, sums = [], []
    places: list[list[int]] = []
    for row, (norms, products) in zip(packed, layers, strict=True):
        words, begin = torch.from_numpy(row).view(torch.int32), 0
        all_floats = [tensor.detach().float() for tensor in norms]
        all_sums: list[Tensor] = []
        places = []
        for (weight, bias), shape in zip(products, shapes, strict=True):
            end = begin + math.prod(shape)
            factors, columns = pack(weight, kind, words[begin:end].view(shape))
            size, at = weight.shape[0], _numbers(all_floats)
            places.append([shape[1], size, 4 * begin, at, at + size, _numbers(all_sums)])
            all_floats += [torch.zeros(size) if bias is None else bias.detach().float(), factors]
            all_sums.append(columns)
            begin = end
        floats.append(torch.cat(all_floats))
        sums.append(torch.cat(all_sums))
    width = len(layers[0][0][0]) if layers[0][0] else 1
    final = torch.zeros(2, width) if norm is None else torch.stack([tensor.detach().float() for tensor in norm])
    return Weights(
        packed, torch.stack(floats).numpy(), torch.stack(sums).numpy(), np.array(places, np.int64), final.numpy(),
        np.array(eps, np.float32), np.array(scales, np.float32),
    )  # fmt: skip


def _numbers(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


class _Stopped(Exception):
    """Exception that stops a worker after another worker has failed."""


class _Worker(threading.local):
    """State of the current thread.

    stop  event that stops the thread if it is a worker, that is, if it runs kernels alone (`Team.work`); otherwise None
    """

    stop: threading.Event | None = None


_worker = _Worker()


class Workspace:
    """Scratch memory for intermediate results of the kernels. It is as large as the largest request so far.

    Each worker (`Team.work`) has separate scratch memory. All other threads share it, one kernel after another.
    """

    def __init__(self, threads: int, left: int, qkv: int, mixed: int, query: int, hidden: int, width: int) -> None:
        self._threads, self._widths, self._width = threads, (left, qkv, mixed, query, hidden), width
        self._shared, self._own = SimpleNamespace(), threading.local()

    def of(self, rows: int, keys: int, head_width: int) -> Scratch:
        """Return scratch memory for `rows` rows, and for attention over at most `keys` keys."""
        place: Any = self._shared if _worker.stop is None else self._own
        # Use a local variable, because another thread may replace the attribute meanwhile.
        s, work = getattr(place, "scratch", None) or self._new(0, 0), work_size(keys, head_width)
        if rows > len(s.left) or work > s.work.shape[1]:
            s = place.scratch = self._new(max(rows, len(s.left)), max(work, s.work.shape[1]))
        return s._replace(qkv=s.qkv[:rows], mixed=s.mixed[:rows], query=s.query[:rows], hidden=s.hidden[:rows])

    def _new(self, rows: int, work: int) -> Scratch:
        def floats(*shape: int) -> NDArray[np.float32]:
            return np.zeros(shape, np.float32)

        left, qkv, mixed, query, hidden = self._widths
        return Scratch(
            np.zeros((rows, left), np.uint8), floats(rows), np.zeros(rows, np.int32), floats(rows, qkv),
            floats(rows, mixed), floats(rows, query), floats(rows, hidden), floats(self._threads, self._width),
            floats(self._threads, work), floats(self._threads, MAX_ROWS, COLUMNS),
        )  # fmt: skip


def get_team(threads: int | None) -> Team:
    """Return the team of `threads` threads that runs the kernels of this process.

    Kernels with several threads run one after another, even in different teams. Otherwise a kernel could wait for
    threads that have no processor.

    threads  number of threads. If None, PyTorch's number of threads
    """
    return _team(threads or torch.get_num_threads())


@cache
def _team(threads: int) -> Team:
    return Team(threads)


class Team:
    """Team of threads that run one kernel together.

    The threads synchronize inside a kernel, so all of them must run it at the same time. Only one such kernel runs at a
    time.
    """

    _turn = threading.Lock()

    def __init__(self, size: int) -> None:
        self.size = size
        self._counter: NDArray[np.int64] = np.zeros(1, np.int64)
        self._pool: ThreadPoolExecutor | None = None
        self._workers: ThreadPoolExecutor | None = None
        os.register_at_fork(after_in_child=self._reset)

    @property
    def threads(self) -> int:
        """Number of threads that run a kernel if the current thread calls it. In a worker (`work`), this is one."""
        return self.size if _worker.stop is None else 1

    def run(self, kernel: Callable[..., None], threads: int, *arguments: Any) -> None:
        """Run kernel(thread, threads, counter, *arguments) on `threads` threads. The calling thread is one of them."""
        if _worker.stop is not None:
            if _worker.stop.is_set():
                raise _Stopped
            return kernel(0, 1, self._counter.ctypes.data, *arguments)
        with Team._turn:
            self._counter[0] = 0
            address = self._counter.ctypes.data
            if threads == 1:
                return kernel(0, 1, address, *arguments)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.size - 1, "kernel")
            others: list[Future[None]] = []
            try:
                for i in range(1, threads):
                    others.append(self._pool.submit(kernel, i, threads, address, *arguments))
                kernel(0, threads, address, *arguments)
            except BaseException:  # This happens if the user pressed Ctrl-C before this thread entered the kernel.
                self._counter[0] = RELEASE
                raise
            finally:
                wait(others)  # Wait for the other threads, because they still write to memory that the next call uses.
            for other in others:
                other.result()

    def work(self, function: Callable[[int, int], None], workers: int) -> None:
        """Run function(worker, workers) in `workers` threads, each of which runs its kernels alone, on one processor.

        If each thread has enough work, threads that do not wait for each other are faster than a team that runs each
        kernel together. If one thread fails, or the user presses Ctrl-C, the others stop at their next kernel.
        """
        if _worker.stop is not None:
            return function(0, 1)
        stop = threading.Event()

        def run(worker: int) -> None:
            _worker.stop = stop
            try:
                function(worker, workers)
            except _Stopped:
                pass  # Another worker has failed. Its error is raised below.
            except BaseException:
                stop.set()
                raise
            finally:
                _worker.stop = None

        if workers > 1 and self._workers is None:
            self._workers = ThreadPoolExecutor(self.size - 1, "worker")
        others = [self._workers.submit(run, i) for i in range(1, workers)] if self._workers else []
        try:
            run(0)
            wait(others)
        except BaseException:
            stop.set()
            wait(others)
            raise
        for other in others:
            other.result()

    def _reset(self) -> None:
        """Discard the thread pools in a process created by fork, because threads do not survive a fork."""
        self._pool, self._workers, Team._turn = None, None, threading.Lock()

"""Preparation of the logits of a decoding step for a search, in one pass over the logits by all threads."""

from __future__ import annotations

import numpy as np

from manyheads.inference.kernels.arguments import Array
from manyheads.inference.kernels.operations import ZERO, exp_bounded, floats_at, kernel


@kernel
def reduce_rows(
    thread: int, threads: int, counter: int, logits: Array, suppress: Array, block: int, maxima: Array, log_sums: Array
) -> None:
    """Set suppressed columns of logits (R, V) to -inf in place, and compute maxima and log-sum-exp of the logits.

    block     number of columns in a block
    maxima    (R, blocks) result: maximum of each block of columns
    log_sums  (R,) result: log-sum-exp of each row
    """
    rows, columns = logits.shape
    for row in range(thread * rows // threads, (thread + 1) * rows // threads):
        for column in suppress:
            logits[row, column] = -np.inf
        address = logits.ctypes.data + row * logits.strides[0]
        highest = logits[row, 0]
        for b in range(maxima.shape[1]):
            numbers = floats_at(address + 4 * b * block, min(block, columns - b * block))
            maximum = numbers[0]
            for i in range(len(numbers)):
                maximum = numbers[i] if numbers[i] > maximum else maximum
            maxima[row, b] = maximum
            highest = maximum if maximum > highest else highest
        total, numbers = ZERO, floats_at(address, columns)
        for i in range(columns):
            total += exp_bounded(numbers[i] - highest)
        log_sums[row] = highest + np.log(total)

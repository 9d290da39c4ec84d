"""Strings of digits and what becomes of them: copied, reversed, added (Kaiser & Sutskever 2016; Dehghani 2018, 4.4).

Nothing is read: the examples of a split depend on its name, its number and the seed alone.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Literal

import numpy as np
from tokenizers import Tokenizer, processors

from manyheads.data.readers.parallel import Pairs
from manyheads.data.text.tokenizers import END, PAD, UNKNOWN, character_tokenizer
from manyheads.errors import UserError

Algorithm = Literal["copy", "reverse", "addition"]
SHORTEST: dict[Algorithm, int] = {"copy": 1, "reverse": 1, "addition": 3}  # characters of an input
DIGITS = "0123456789"


def algorithmic_pairs(
    algorithm: Algorithm, count: int, longest: int, *, shortest: int | None = None, seed: int, split: str
) -> Pairs:
    """So many inputs with their outputs; lengths are drawn evenly from `shortest` (None: the least) to `longest`.

    copy      "3141" -> "3141"; "reverse" -> "1413"
    addition  "21+9" -> "12": two numbers with the least significant digit first, as the sum is (the published code);
              of an input's digits each number has at least one, how many is drawn evenly.
    Raises UserError for lengths that the algorithm has no input of.
    """
    least = SHORTEST[algorithm]
    shortest = least if shortest is None else shortest
    if not least <= shortest <= longest:
        raise UserError(f"{algorithm} of {shortest} to {longest} characters: expected {least} or more, shortest first")
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *split.encode()])))
    sources, targets = [], []
    for length in random.integers(shortest, longest, size=count, endpoint=True).tolist():
        digits = "".join(map(str, random.integers(10, size=length).tolist()))
        if algorithm == "addition":
            at = int(random.integers(1, length - 1))
            digits = f"{digits[:at]}+{digits[at + 1 :]}"
        sources.append(digits)
        targets.append(_output(algorithm, digits))
    return Pairs(sources, targets)


def _output(algorithm: Algorithm, digits: str) -> str:
    if algorithm == "addition":
        return _sum(*digits.split("+"))
    return digits if algorithm == "copy" else digits[::-1]


def _sum(first: str, second: str) -> str:
    """Of two numbers, least digit first. Python's own `int` refuses texts of more than 4,300 digits."""
    digits, carry = [], 0
    for a, b in zip_longest(first, second, fillvalue="0"):
        carry, digit = divmod(int(a) + int(b) + carry, 10)
        digits.append(str(digit))
    return "".join([*digits, str(carry)]).rstrip("0") or "0"


def digit_tokenizer() -> Tokenizer:
    """One id for each digit and for the plus sign, in the layout of `data/tokenizers.py`; texts get an end token."""
    tokenizer = character_tokenizer([END, UNKNOWN, *DIGITS, "+", PAD], special=[END, UNKNOWN, PAD])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 0)])
    return tokenizer

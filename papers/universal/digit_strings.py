"""Generated digit strings for the tasks copy, reverse and addition.

Sources: Kaiser & Sutskever 2016; Dehghani 2018, section 4.4.
The examples of a split depend only on the name of the split, on its size and on the seed.
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
# minimum number of characters in an input string
SHORTEST: dict[Algorithm, int] = {"copy": 1, "reverse": 1, "addition": 3}
DIGITS = "0123456789"


def algorithmic_pairs(
    algorithm: Algorithm, count: int, longest: int, *, shortest: int | None = None, seed: int, split: str
) -> Pairs:
    """Generate `count` input strings with their outputs. The lengths are uniform from `shortest` to `longest`.

    copy      "3141" -> "3141"
    reverse   "3141" -> "1413"
    addition  "21+9" -> "12": two numbers and their sum, least significant digit first (as in the published code).
              The position of the plus sign is uniform; each number has at least one digit

    If `shortest` is None, it is the minimum length for the algorithm. Raises UserError for an impossible length.
    """
    minimum = SHORTEST[algorithm]
    shortest = minimum if shortest is None else shortest
    if not minimum <= shortest <= longest:
        raise UserError(
            f"expected {algorithm} of {minimum} characters or more, minimum first; found {shortest} to {longest}"
        )
    random = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *split.encode()])))
    sources, targets = [], []
    for length in random.integers(shortest, longest, size=count, endpoint=True).tolist():
        digits = "".join(map(str, random.integers(10, size=length).tolist()))
        if algorithm == "addition":
            plus_index = int(random.integers(1, length - 1))
            digits = f"{digits[:plus_index]}+{digits[plus_index + 1 :]}"
        sources.append(digits)
        targets.append(_output(algorithm, digits))
    return Pairs(sources, targets)


def _output(algorithm: Algorithm, digits: str) -> str:
    if algorithm == "addition":
        return _sum(*digits.split("+"))
    return digits if algorithm == "copy" else digits[::-1]


def _sum(first: str, second: str) -> str:
    """Add two numbers, written with the least significant digit first.

    Python's `int` is not used, because it rejects strings of more than 4,300 digits.
    """
    digits, carry = [], 0
    for a, b in zip_longest(first, second, fillvalue="0"):
        carry, digit = divmod(int(a) + int(b) + carry, 10)
        digits.append(str(digit))
    return "".join([*digits, str(carry)]).rstrip("0") or "0"


def digit_tokenizer() -> Tokenizer:
    """Return a tokenizer with one id per digit and one id for the plus sign.

    Special tokens have the same ids as in `data/text/tokenizers.py`. Each text gets an end token.
    """
    tokenizer = character_tokenizer([END, UNKNOWN, *DIGITS, "+", PAD], special=[END, UNKNOWN, PAD])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 0)])
    return tokenizer

"""Fuzzing targets: valid examples, and a function that uses a folder of that form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.stress.fuzzing.inputs import Files


@dataclass(frozen=True)
class Target:
    """`examples` are made in a folder, if need be; `use` reads a folder with the files of one, harmed or not.

    readable  what it may open elsewhere, as its input may name any file, which is then refused for what it is
    """

    examples: Callable[[Path], list[Files]]
    use: Callable[[Path], None]
    readable: tuple[str, ...] = ()


class Refused(Exception):
    """Rejection of an input that does not raise an error, such as a request with an error status."""

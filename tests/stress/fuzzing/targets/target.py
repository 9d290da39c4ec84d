"""What is fuzzed: valid examples, and a few lines that use a folder like them."""

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
    """What was refused cleanly in another way than by an error, such as a request."""

"""llama.cpp through llama-cpp-python: a GPT-2 as a GGUF file with 8-bit weights (q8_0)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from manyheads.models.gpt import GPT

SETTINGS: Mapping[str, str] = {"q8_0": "int8"}


def decoder(model: GPT, batch: int, capacity: int, threads: int) -> tuple[Callable[[], None], Callable[[Any], Any]]:
    """(forget everything, tokens (B, T) -> logits (B, V)), for texts of up to `capacity` tokens."""
    raise NotImplementedError

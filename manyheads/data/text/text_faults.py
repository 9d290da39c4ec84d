"""Checks of texts before a model reads them."""

from __future__ import annotations

from collections.abc import Sequence

from manyheads.data.readers.splits import LONGEST, SURROGATE, lone_surrogate
from manyheads.errors import UserError

CHARACTERS = 1000  # maximum characters per token; the longest tokens of GPT-2's vocabulary have 128


class ItemError(UserError):
    """Error for one of several texts that cannot be used.

    index  index of the text, from 0
    fault  the fault, to follow the name of the text: "has 9 tokens, the model takes 8"
    name   name of the text in the message; None: "text 1" for index 0
    """

    def __init__(self, index: int, fault: str, name: str | None = None) -> None:
        super().__init__(f"{name or f'text {index + 1}'} {fault}")
        self.index, self.fault = index, fault


def fault_of(text: str, room: int | None = None, hint: str = "shorten it") -> str | None:
    """Return the fault of a text, to follow its name; None if the text is valid.

    Faults are a lone surrogate and too many characters, for `room` tokens or (None) for any text. Characters are
    limited because tokenizing ten million of them takes half a minute and two gigabytes.
    """
    if room is not None and len(text) > room * CHARACTERS:
        return f"has {len(text):,} characters, but the model takes {room:,} tokens: {hint}"
    if len(text) > LONGEST:
        return f"has {len(text):,} characters; give at most {LONGEST:,}"
    if (position := lone_surrogate(text)) is not None:
        return f"{SURROGATE[0]} at position {position}; give valid UTF-8"
    return None


def check_text(text: str, name: str, room: int | None = None, hint: str = "shorten it") -> None:
    """Raise UserError if a text cannot be used."""
    if fault := fault_of(text, room, hint):
        raise UserError(f"{name} {fault}")


def check_texts(texts: Sequence[str], room: int | None = None, hint: str = "shorten it") -> None:
    """Raise ItemError for the first text that cannot be used."""
    for index, text in enumerate(texts):
        if fault := fault_of(text, room, hint):
            raise ItemError(index, fault)


def beginning(text: str, room: int | None) -> str:
    """Return the beginning of a text that determines its first `room` tokens; None: the whole text, up to `LONGEST`."""
    return text if room is None else text[: min(room * CHARACTERS, LONGEST)]

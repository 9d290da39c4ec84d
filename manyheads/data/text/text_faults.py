"""What is wrong with a text, or with one of several, before a model reads it."""

from __future__ import annotations

from collections.abc import Sequence

from manyheads.data.readers.splits import LONGEST, SURROGATE, half_character
from manyheads.errors import UserError

CHARACTERS = 1000  # that a token of a text may stand for; the longest tokens of GPT-2's vocabulary have 128


class ItemError(UserError):
    """One of several texts cannot be used.

    index  its number, from 0
    fault  what is wrong, to follow the text's name: "has 9 tokens, the model takes 8"
    name   what the message calls it; None: "text 1" for the first
    """

    def __init__(self, index: int, fault: str, name: str | None = None) -> None:
        super().__init__(f"{name or f'text {index + 1}'} {fault}")
        self.index, self.fault = index, fault


def fault_of(text: str, room: int | None = None, hint: str = "shorten it") -> str | None:
    """What is wrong with a text, to follow its name: half a character, or too many characters for `room` tokens, or
    (None) for any text.

    Characters are counted because to tokenize ten million of them takes half a minute and two gigabytes.
    """
    if room is not None and len(text) > room * CHARACTERS:
        return f"has {len(text):,} characters, the model takes {room:,} tokens: {hint}"
    if len(text) > LONGEST:
        return f"has {len(text):,} characters: give at most {LONGEST:,}"
    if (position := half_character(text)) is not None:
        return f"{SURROGATE[0]} at position {position}: give valid UTF-8"
    return None


def check_text(text: str, name: str, room: int | None = None, hint: str = "shorten it") -> None:
    """Raises UserError for a text that cannot be used."""
    if fault := fault_of(text, room, hint):
        raise UserError(f"{name} {fault}")


def check_texts(texts: Sequence[str], room: int | None = None, hint: str = "shorten it") -> None:
    """Raises ItemError for the first of the texts that cannot be used."""
    for index, text in enumerate(texts):
        if fault := fault_of(text, room, hint):
            raise ItemError(index, fault)


def beginning(text: str, room: int | None) -> str:
    """As much of a text as can matter for its first `room` tokens; None: all of it."""
    return text if room is None else text[: min(room * CHARACTERS, LONGEST)]

"""Functions that check whether a text can be processed by a tokenizer and a model."""

from __future__ import annotations

from collections.abc import Sequence

from manyheads.data.readers.splits import LONGEST, SURROGATE, lone_surrogate
from manyheads.errors import UserError

# Maximum number of characters that one token can represent. The longest tokens in GPT-2's vocabulary have 128.
CHARACTERS = 1000


class ItemError(UserError):
    """Error for one text of a list that cannot be used.

    index  index of the text in the list, from 0
    fault  predicate of the message, such as "has 9 tokens, the model takes 8"; the name of the text is its subject
    name   name of the text in the message. By default, its number, such as "text 1" for index 0
    """

    def __init__(self, index: int, fault: str, name: str | None = None) -> None:
        super().__init__(f"{name or f'text {index + 1}'} {fault}")
        self.index: int = index
        self.fault = fault


def fault_of(text: str, room: int | None = None, hint: str = "shorten it") -> str | None:
    """Return the fault of a text that cannot be tokenized, such as "has 9 characters ..."; None for a valid text.

    A text is invalid if it contains a lone surrogate or too many characters. Without a limit, tokenizing ten million
    characters would take half a minute and two gigabytes.

    room  number of tokens that the model takes; the text may have as many characters as they can represent. If None,
          the limit is `LONGEST` characters
    hint  advice at the end of the description if the text is too long
    """
    if room is not None and len(text) > room * CHARACTERS:
        return f"has {len(text):,} characters, but the model takes {room:,} tokens: {hint}"
    if len(text) > LONGEST:
        return f"has {len(text):,} characters; give at most {LONGEST:,}"
    if (position := lone_surrogate(text)) is not None:
        return f"{SURROGATE[0]} at position {position}; give valid UTF-8"
    return None


def check_text(text: str, name: str, room: int | None = None, hint: str = "shorten it") -> None:
    """Raise UserError if the text cannot be processed by a tokenizer and a model."""
    if fault := fault_of(text, room, hint):
        raise UserError(f"{name} {fault}")


def check_texts(texts: Sequence[str], room: int | None = None, hint: str = "shorten it") -> None:
    """Raise ItemError for the first text of a list that cannot be processed by a tokenizer and a model."""
    for index, text in enumerate(texts):
        if fault := fault_of(text, room, hint):
            raise ItemError(index, fault)


def beginning(text: str, room: int | None) -> str:
    """Return the beginning of a text that is long enough to determine its first `room` tokens.

    If `room` is None, return the whole text, up to `LONGEST` characters.
    """
    return text if room is None else text[: min(room * CHARACTERS, LONGEST)]

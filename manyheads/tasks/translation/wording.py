"""Words that translations must or must not contain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from manyheads.errors import UserError
from manyheads.generation.constraints import Constraints
from manyheads.tasks.encoding import unknown_token
from manyheads.tasks.inputs import rows_of

MAX_LENGTH = 100_000


@dataclass(frozen=True)
class Wording:
    """Constraints on the text of translations. The fields are the options of the same names in `Options`."""

    prefix: str = ""
    force: str | Sequence[str] = ()
    ban: str | Sequence[str] = ()
    no_repeat: int = 0
    min_length: int = 0

    def __post_init__(self) -> None:
        for name, words in (("force", self.force), ("ban", self.ban)):
            object.__setattr__(self, name, tuple(rows_of(words, name)[0]))
        if both := {*self.force} & {*self.ban}:
            raise UserError(f"force and ban both have {min(both)!r}: a word can be in one of them only")
        if begun := {*self.prefix.split()} & {*self.ban}:
            raise UserError(f"prefix contains {min(begun)!r}, which is also banned: leave out one of them")
        for name, length in (("no_repeat", self.no_repeat), ("min_length", self.min_length)):
            if not 0 <= length <= MAX_LENGTH:
                raise UserError(f"{name} is {length}: expected 0 to {MAX_LENGTH:,}")

    def constraints(self, tokenizer: Tokenizer) -> Constraints | None:
        """Return the constraints in token ids, or None if there are none.

        Raises UserError for a word that the vocabulary cannot represent.
        """

        def tokens(name: str, text: str) -> tuple[int, ...]:
            encoding = tokenizer.encode(text)
            ids = encoding.ids[:-1]  # without the end token
            unknown = unknown_token(tokenizer)
            if not ids or (unknown is not None and unknown in encoding.tokens):
                raise UserError(f"{name} has {text!r}: expected a text that the model's vocabulary can represent")
            return tuple(ids)

        if self == Wording():
            return None
        return Constraints(
            tokens("prefix", self.prefix) if self.prefix else (),
            tuple(tokens("ban", text) for text in self.ban),
            self.no_repeat,
            self.min_length,
            tuple(tokens("force", text) for text in self.force),
        )

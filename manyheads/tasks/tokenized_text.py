"""A text, or a pair of texts, as a model reads it, and how its tokens are shown beside attention maps.

Tokens are shown as the characters that they stand for. A word has no blank inside and is one piece to the tokenizer: a
mark at the end of a word is a word of its own where the tokenizer says so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import Encoding, Tokenizer

from manyheads.analysis.maps.sides import SPECIAL, Side
from manyheads.data.text.text_faults import beginning, check_text
from manyheads.data.text.tokenizers import shortened
from manyheads.errors import UserError
from manyheads.generation.text import INVALID

SHORTEN = "shorten it, or have it cut with truncate (--truncate)"


class TokenizedText(NamedTuple):
    """Token ids, which of the two texts each is part of, and how they are shown."""

    ids: list[int]
    segments: list[int]
    side: Side

    def part(self, kept: Sequence[int]) -> TokenizedText:
        """The tokens at those places."""
        ids, segments = ([values[at] for at in kept] for values in (self.ids, self.segments))
        return TokenizedText(ids, segments, self.side.part(kept))


def tokenized(
    tokenizer: Tokenizer, text: str, pair: str | None = None, *, room: int | None = None, truncate: bool = False,
    special: bool = True,
) -> TokenizedText:  # fmt: skip
    """Tokens, with the tokenizer's special ones if `special`.

    Raises UserError for a text that has no tokens of its own. A text with so many characters that it cannot fit into
    `room` tokens is one, too. With `truncate`, texts are cut to `room` tokens, not the special ones around them.
    """
    if truncate:
        text, pair = beginning(text, room), None if pair is None else beginning(pair, room)
    for name, content in (("text", text), ("second text", pair)):
        if content is None:
            continue
        check_text(content, f"the {name}", room, SHORTEN)
        if not tokenizer.encode(content, add_special_tokens=False).ids:
            raise UserError(f"the {name} is blank to the tokenizer: there is nothing to look at")
    encoding = tokenizer.encode(text, pair, add_special_tokens=special)
    whole = TokenizedText(encoding.ids, encoding.type_ids, side_of(encoding, (text, pair or "")))
    return whole.part(shortened(encoding.sequence_ids, room)) if truncate and room is not None else whole


class DecodedTokens(NamedTuple):
    """What an `Encoding` tells of a text, for ids that a model wrote: their text, encoded, may give other ids."""

    tokens: list[str]
    offsets: list[tuple[int, int]]
    word_ids: list[int]
    sequence_ids: list[int | None]


def tokenized_ids(tokenizer: Tokenizer, ids: list[int]) -> TokenizedText:
    """Tokens that a model wrote."""
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    text, ends = "", list[int]()
    for after in range(1, len(ids) + 1):  # the text of a token can depend on those before it
        text = tokenizer.decode(ids[:after])
        ends.append(len(text.removesuffix(INVALID)))
    starts = [0, *ends[:-1]]
    for at in reversed(range(len(ids) - 1)):  # a token that is part of a character is shown as the whole character
        if starts[at] >= ends[at] and ids[at] not in special:
            ends[at] = ends[at + 1]
    words = tokenizer.pre_tokenizer.pre_tokenize_str(text) if tokenizer.pre_tokenizer else []
    borders = [start for _, (start, _) in words]
    decoded = DecodedTokens(
        [tokenizer.id_to_token(token) or f"[{token}]" for token in ids],
        list(zip(starts, ends, strict=True)),
        [bisect_right(borders, start) for start in starts],
        [None if token in special else 0 for token in ids],
    )
    return TokenizedText(ids, [0] * len(ids), side_of(decoded, (text,)))


def side_of(encoding: Encoding | DecodedTokens, texts: Sequence[str]) -> Side:
    """The tokens of a text, or of two, as they are shown, and the words that they are part of."""
    tokens: list[str] = []
    words: list[int] = []
    word = SPECIAL
    before: tuple[int | None, int, int | None] = (None, 0, None)  # its text, where it ended, the tokenizer's word
    last = (-1, -1, -1)
    shared = Counter(zip(encoding.sequence_ids, encoding.offsets, strict=True))
    for token, (start, end), inner, number in zip(
        encoding.tokens, encoding.offsets, encoding.word_ids, encoding.sequence_ids, strict=True
    ):
        if number is None:
            tokens.append(token)
            words.append(SPECIAL)
            before = (None, 0, None)
            continue
        text = texts[number]
        piece = text[start:end]
        goes_on = before[0] == number and before[2] == inner and start <= before[1]
        blank = piece[:1].isspace() or text[start - 1 : start].isspace()
        word += not (goes_on and (not blank or (number, start, end) == last))
        whole = shared[number, (start, end)] == 1  # else several tokens share a character, and none can be shown as it
        tokens.append(_shown(piece, token) if whole else token)
        words.append(word)
        before, last = (number, end, inner), (number, start, end)
    return Side(tuple(tokens), tuple(words))


def _shown(piece: str, token: str) -> str:
    return piece.strip() or ("⏎" if "\n" in piece else "␣" if piece else token)

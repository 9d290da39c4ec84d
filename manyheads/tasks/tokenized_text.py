"""Tokenized texts and pairs of texts, with the tokens in the form that is displayed next to attention maps.

A token is displayed as the characters that it represents. Tokens are grouped into words, as the tokenizer's
pre-tokenizer divides the text. Words contain no white space, and punctuation marks may be separate words.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tokenizers import Encoding, Tokenizer

from manyheads.analysis.maps.sides import SPECIAL, Side
from manyheads.data.text.text_faults import beginning, check_text
from manyheads.data.text.windows import positions_after_truncation
from manyheads.errors import UserError
from manyheads.generation.text import INVALID

SHORTEN = "shorten it, or cut it with truncate (--truncate)"


class TokenizedText(NamedTuple):
    """Token ids, the segment of each token (0 for the first text, 1 for the second), and the tokens as displayed."""

    ids: list[int]
    segments: list[int]
    side: Side

    def part(self, indices: Sequence[int]) -> TokenizedText:
        """Return a copy with only the tokens at the given indices."""
        ids, segments = ([values[at] for at in indices] for values in (self.ids, self.segments))
        return TokenizedText(ids, segments, self.side.part(indices))


def tokenized(
    tokenizer: Tokenizer, text: str, pair: str | None = None, *, max_tokens: int | None = None, truncate: bool = False,
    special: bool = True,
) -> TokenizedText:  # fmt: skip
    """Tokenize a text or a pair of texts for display.

    max_tokens  maximum number of tokens, including special tokens
    truncate    if True, cut texts to `max_tokens` tokens. The special tokens around the texts remain
    special     True to add the tokenizer's special tokens

    Raises UserError if a text has no tokens apart from special tokens, or too many characters for `max_tokens` tokens.
    """
    if truncate:
        text, pair = beginning(text, max_tokens), None if pair is None else beginning(pair, max_tokens)
    for name, content in (("text", text), ("second text", pair)):
        if content is None:
            continue
        check_text(content, f"the {name}", max_tokens, SHORTEN)
        if not tokenizer.encode(content, add_special_tokens=False).ids:
            raise UserError(f"the {name} is empty after tokenization. Give a text with at least one token.")
    encoding = tokenizer.encode(text, pair, add_special_tokens=special)
    whole = TokenizedText(encoding.ids, encoding.type_ids, side_of(encoding, (text, pair or "")))
    return (
        whole.part(positions_after_truncation(encoding.sequence_ids, max_tokens))
        if truncate and max_tokens is not None
        else whole
    )


class DecodedTokens(NamedTuple):
    """Tokens of a text that a model generated, with the same fields as a tokenizer's `Encoding`.

    They are the tokens that the model generated. Encoding the generated text could give other tokens.
    """

    tokens: list[str]
    offsets: list[tuple[int, int]]
    word_ids: list[int]
    sequence_ids: list[int | None]


def tokenized_ids(tokenizer: Tokenizer, ids: list[int]) -> TokenizedText:
    """Return the displayed tokens of a text that a model generated, given its token ids."""
    special = {token_id for token_id, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    text, ends = "", list[int]()
    for after in range(1, len(ids) + 1):  # The text of a token can depend on the preceding tokens.
        text = tokenizer.decode(ids[:after])
        ends.append(len(text.removesuffix(INVALID)))
    starts = [0, *ends[:-1]]
    # Several tokens may together form one character. Then the whole character is displayed for each of these tokens.
    for index in reversed(range(len(ids) - 1)):
        if starts[index] >= ends[index] and ids[index] not in special:
            ends[index] = ends[index + 1]
    words = tokenizer.pre_tokenizer.pre_tokenize_str(text) if tokenizer.pre_tokenizer else []
    borders = [start for _, (start, _) in words]
    decoded = DecodedTokens(
        [tokenizer.id_to_token(token) or f"[{token}]" for token in ids],
        list(zip(starts, ends, strict=True)),
        [bisect_right(borders, start) for start in starts],
        [None if token in special else 0 for token in ids],
    )
    return TokenizedText(ids, [0] * len(ids), side_of(decoded, (text,)))


def displayed(tokenizer: Tokenizer, token: int) -> str:
    """Return one token of a vocabulary as it is displayed."""
    return tokenized_ids(tokenizer, [token]).side.tokens[0]


def side_of(encoding: Encoding | DecodedTokens, texts: Sequence[str]) -> Side:
    """Return the displayed tokens of one or two texts, and the index of the word that each token belongs to."""
    tokens: list[str] = []
    words: list[int] = []
    word = SPECIAL
    # values of the previous token: index of its text, end offset and word index
    before: tuple[int | None, int, int | None] = (None, 0, None)
    last = (-1, -1, -1)
    span_counts = Counter(zip(encoding.sequence_ids, encoding.offsets, strict=True))
    for token, (start, end), word_id, text_id in zip(
        encoding.tokens, encoding.offsets, encoding.word_ids, encoding.sequence_ids, strict=True
    ):
        if text_id is None:
            tokens.append(token)
            words.append(SPECIAL)
            before = (None, 0, None)
            continue
        text = texts[text_id]
        piece = text[start:end]
        continues = before[0] == text_id and before[2] == word_id and start <= before[1]
        blank = piece[:1].isspace() or text[start - 1 : start].isspace()
        word += not (continues and (not blank or (text_id, start, end) == last))
        # If several tokens form one character, display each token as it is written in the vocabulary.
        single = span_counts[text_id, (start, end)] == 1
        tokens.append(_shown(piece, token) if single else token)
        words.append(word)
        before, last = (text_id, end, word_id), (text_id, start, end)
    return Side(tuple(tokens), tuple(words))


def _shown(piece: str, token: str) -> str:
    return piece.strip() or ("⏎" if "\n" in piece else "␣" if piece or token == "▁" else token)

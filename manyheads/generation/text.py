"""Incremental conversion of tokens to text: returns only characters that can no longer change, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from manyheads.errors import UserError

INVALID = "\ufffd"  # replacement character for bytes that are not, or not yet, a character
MAX_BYTES = 4  # maximum number of bytes, and so of tokens, of a character
MAX_PENDING = 16  # maximum number of tokens without complete text, before some of them are dropped


class TextStream:
    """Text that continues a prompt, token by token. The pieces that `push` and `finish` return add up to the text.

    A token may end inside a character or a stop string, so characters that the next token can still change are held
    back.

    prompt  ids before the first token, which can affect the spelling of a token (leading space).
    stop    stop strings; the text ends before the first one that appears.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), stop: Sequence[str] = ()) -> None:
        if "" in stop:
            raise UserError("found an empty stop string: expected at least one character")
        self.text = ""  # all text returned so far
        self.stopped = False
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._ids = [*prompt]  # tokens since the last but one position with complete text
        self._done = len(self._ids)  # number of these tokens whose text is returned
        self._returned = len(self._decode(self._ids))  # number of returned characters of their text
        self._held_back = ""  # complete characters that may be the beginning of a stop string

    def push(self, token: int) -> str:
        """Add a token, and return the text that can no longer change."""
        assert not self.stopped, "the text has already ended"
        self._ids.append(token)
        text = self._decode(self._ids)
        # Each of several replacement characters may be incomplete, if the decoder processes bytes one by one.
        complete = text.rstrip(INVALID) if len(self._ids) - self._done <= MAX_PENDING else text.removesuffix(INVALID)
        piece, self._returned = complete[self._returned :], max(self._returned, len(complete))
        # Start a new window with the tokens since the last start, if they have a text. After a lone special token, the
        # next word would be written as the first one of a text, without its space.
        if complete == text and piece:
            self._ids = self._ids[self._done :]
            self._done, self._returned = len(self._ids), len(self._decode(self._ids))
        elif complete != text and len(self._ids) - self._done > MAX_PENDING:
            self._drop_invalid(text)
        return self._until_stop(piece)

    def _drop_invalid(self, text: str) -> None:
        """Drop tokens that never form a character, and keep the last ones, if the text does not change."""
        last = self._ids[-MAX_BYTES:]
        before, after = self._decode(self._ids[:-MAX_BYTES]), self._decode(last)
        if before + after == text and len(before) <= self._returned:
            self._ids, self._done, self._returned = last, 0, self._returned - len(before)

    def finish(self) -> str:
        """Return the remaining text after the last token."""
        return "" if self.stopped else self._until_stop(self._decode(self._ids)[self._returned :], last=True)

    def _until_stop(self, piece: str, *, last: bool = False) -> str:
        text = self._held_back + piece
        # The stop string that ends first wins, so that the result does not depend on the tokenization.
        stops = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        self.stopped = bool(stops)
        complete = min(stops)[1] if stops else len(text) if last else len(text) - self._partial_stop(text)
        self._held_back = "" if self.stopped else text[complete:]
        self.text += text[:complete]
        return text[:complete]

    def _partial_stop(self, text: str) -> int:
        """Return the number of characters at the end of a text with which a stop string may begin."""
        lengths = (n for stop in self._stop for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n]))
        return max(lengths, default=0)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)

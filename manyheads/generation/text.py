"""Incremental conversion of tokens to text: returns only characters that can no longer change, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from manyheads.errors import UserError

UNSURE = "\ufffd"  # replacement character for bytes that are not, or not yet, a character
PARTS = 4  # maximum number of bytes, and so of tokens, of a character
PENDING = 16  # maximum number of tokens without complete text, before some of them are dropped


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
        self._settled = len(self._ids)  # number of these tokens whose text is returned
        self._out = len(self._decode(self._ids))  # number of returned characters of their text
        self._held = ""  # complete characters that may be the beginning of a stop string

    def push(self, token: int) -> str:
        """Add a token, and return the text that can no longer change."""
        assert not self.stopped, "the text has already ended"
        self._ids.append(token)
        text = self._decode(self._ids)
        # Each of several replacement characters may be incomplete, if the decoder processes bytes one by one.
        sure = text.rstrip(UNSURE) if len(self._ids) - self._settled <= PENDING else text.removesuffix(UNSURE)
        piece, self._out = sure[self._out :], max(self._out, len(sure))
        # Start a new window with the tokens since the last start, if they have a text. After a lone special token, the
        # next word would be written as the first one of a text, without its space.
        if sure == text and piece:
            self._ids = self._ids[self._settled :]
            self._settled, self._out = len(self._ids), len(self._decode(self._ids))
        elif sure != text and len(self._ids) - self._settled > PENDING:
            self._drop(text)
        return self._until_stop(piece)

    def _drop(self, text: str) -> None:
        """Drop tokens that never form a character, and keep the last ones, if the text does not change."""
        last = self._ids[-PARTS:]
        before, after = self._decode(self._ids[:-PARTS]), self._decode(last)
        if before + after == text and len(before) <= self._out:
            self._ids, self._settled, self._out = last, 0, self._out - len(before)

    def finish(self) -> str:
        """Return the remaining text after the last token."""
        return "" if self.stopped else self._until_stop(self._decode(self._ids)[self._out :], last=True)

    def _until_stop(self, piece: str, *, last: bool = False) -> str:
        text = self._held + piece
        # The stop string that ends first wins, so that the result does not depend on the tokenization.
        stops = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        self.stopped = bool(stops)
        sure = min(stops)[1] if stops else len(text) if last else len(text) - self._begun(text)
        self._held = "" if self.stopped else text[sure:]
        self.text += text[:sure]
        return text[:sure]

    def _begun(self, text: str) -> int:
        """Return the number of characters at the end of a text with which a stop string may begin."""
        lengths = (n for stop in self._stop for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n]))
        return max(lengths, default=0)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)

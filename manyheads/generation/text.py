"""Incremental conversion of generated tokens to text, which ends at a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from manyheads.errors import UserError

# Unicode replacement character, to which decoders convert bytes that form no character, or only a part of a character.
INVALID = "\ufffd"
MAX_BYTES = 4  # maximum number of bytes, and therefore of tokens, of a character
MAX_PENDING = 16  # If more tokens than this give no complete character, the first of them are dropped.


class TextStream:
    """Text that continues a prompt, built token by token.

    `push` and `finish` return the text in pieces. A token may end inside a character or a stop string. Therefore a
    piece contains only characters that the next tokens can no longer change.

    prompt  token ids of the prompt, which can affect whether the first token begins with a space
    stop    stop strings. The text ends before the first stop string in it
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), stop: Sequence[str] = ()) -> None:
        if "" in stop:
            raise UserError("found an empty stop string: expected at least one character")
        self.text = ""  # all text that has been returned
        self.stopped = False
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._ids = [*prompt]  # window of tokens that are decoded together; older tokens have been converted completely
        self._done = len(self._ids)  # number of tokens in the window whose text has been returned
        self._returned = len(self._decode(self._ids))  # number of characters of the window that have been returned
        self._held_back = ""  # complete characters that may be the beginning of a stop string

    def push(self, token: int) -> str:
        """Add a token, and return the new text that can no longer change."""
        assert not self.stopped, "the text has already ended"
        self._ids.append(token)
        text = self._decode(self._ids)
        # A decoder that processes bytes one by one gives several replacement characters, each of which may still
        # change.
        complete = text.rstrip(INVALID) if len(self._ids) - self._done <= MAX_PENDING else text.removesuffix(INVALID)
        piece, self._returned = complete[self._returned :], max(self._returned, len(complete))
        # Start a new window with the latest tokens, if they have a text. If a window began with a special token without
        # text, the next word would be decoded as the first word of a text, without its leading space.
        if complete == text and piece:
            self._ids = self._ids[self._done :]
            self._done, self._returned = len(self._ids), len(self._decode(self._ids))
        elif complete != text and len(self._ids) - self._done > MAX_PENDING:
            self._drop_invalid_bytes(text)
        return self._until_stop(piece)

    def _drop_invalid_bytes(self, text: str) -> None:
        """Drop old tokens whose bytes form no character from the window, if this does not change the text."""
        last = self._ids[-MAX_BYTES:]
        before, after = self._decode(self._ids[:-MAX_BYTES]), self._decode(last)
        if before + after == text and len(before) <= self._returned:
            self._ids, self._done, self._returned = last, 0, self._returned - len(before)

    def finish(self) -> str:
        """Return the remaining text after the last token has been added."""
        return "" if self.stopped else self._until_stop(self._decode(self._ids)[self._returned :], last=True)

    def _until_stop(self, piece: str, *, last: bool = False) -> str:
        text = self._held_back + piece
        # Of several stop strings, the one that ends first is used, so that the result does not depend on the
        # tokenization.
        stops = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        self.stopped = bool(stops)
        complete = min(stops)[1] if stops else len(text) if last else len(text) - self._partial_stop(text)
        self._held_back = "" if self.stopped else text[complete:]
        self.text += text[:complete]
        return text[:complete]

    def _partial_stop(self, text: str) -> int:
        """Return the number of characters at the end of a text that may be the beginning of a stop string."""
        lengths = (n for stop in self._stop for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n]))
        return max(lengths, default=0)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)

"""From tokens to text while they come: characters that are sure, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from manyheads.errors import UserError

UNSURE = "\ufffd"  # what bytes decode to that are no character, or not yet one
PARTS = 4  # bytes of a character, and so tokens, at most
PENDING = 16  # tokens since the text was sure, from which on it is tried to go on without them


class TextStream:
    """The text that continues a prompt, token by token. The pieces that `push` and `finish` return add up to it.

    A token may hold a part of a character or of a stop string: what the next one can still change is held back.

    prompt  ids before the first token; how a token is written can depend on the one before it.
    stop    strings of which the first to appear ends the text before it.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = (), stop: Sequence[str] = ()) -> None:
        if "" in stop:
            raise UserError("a stop string must not be empty")
        self.text = ""  # all that has been returned
        self.stopped = False
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._ids = [*prompt]  # since the last two places where the text was sure
        self._settled = len(self._ids)  # of these, the ones whose text is out
        self._out = len(self._decode(self._ids))  # characters of their text that are out
        self._held = ""  # sure, but perhaps the beginning of a stop string

    def push(self, token: int) -> str:
        """The piece of text that is sure now."""
        assert not self.stopped, "the text is over"
        self._ids.append(token)
        text = self._decode(self._ids)
        # of several bytes each may be one, if the decoder takes them one by one
        sure = text.rstrip(UNSURE) if len(self._ids) - self._settled <= PENDING else text.removesuffix(UNSURE)
        piece, self._out = sure[self._out :], max(self._out, len(sure))
        # a new beginning, with the tokens since the last one as what goes before, if they have a text: after a special
        # token alone, the next word would be written as the first one is, without its space
        if sure == text and piece:
            self._ids = self._ids[self._settled :]
            self._settled, self._out = len(self._ids), len(self._decode(self._ids))
        elif sure != text and len(self._ids) - self._settled > PENDING:
            self._drop(text)
        return self._until_stop(piece)

    def _drop(self, text: str) -> None:
        """Tokens that end in no character again and again: go on with the last ones, where that changes no text."""
        last = self._ids[-PARTS:]
        before, after = self._decode(self._ids[:-PARTS]), self._decode(last)
        if before + after == text and len(before) <= self._out:
            self._ids, self._settled, self._out = last, 0, self._out - len(before)

    def finish(self) -> str:
        """What is left when no token follows."""
        return "" if self.stopped else self._until_stop(self._decode(self._ids)[self._out :], last=True)

    def _until_stop(self, piece: str, *, last: bool = False) -> str:
        text = self._held + piece
        # by their ends: which one is complete first does not depend on how the text is cut into tokens
        stops = [(at + len(stop), at) for stop in self._stop if (at := text.find(stop)) >= 0]
        self.stopped = bool(stops)
        sure = min(stops)[1] if stops else len(text) if last else len(text) - self._begun(text)
        self._held = "" if self.stopped else text[sure:]
        self.text += text[:sure]
        return text[:sure]

    def _begun(self, text: str) -> int:
        """Characters at the end of a text that a stop string may begin with."""
        lengths = (n for stop in self._stop for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n]))
        return max(lengths, default=0)

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)

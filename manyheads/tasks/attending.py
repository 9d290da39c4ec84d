"""Where a trained model looks while it reads a text, a pair of texts, a translation or an image.

Tokens are shown as the characters that they stand for. Words are what has no blank inside and is one piece to the
tokenizer: a mark at the end of a word is a word of its own where the tokenizer says so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor, nn

from manyheads import directory
from manyheads.analysis.maps import AttentionMaps, Sides, attention_maps
from manyheads.analysis.maps.sides import SPECIAL, Side
from manyheads.core.runtime import Route
from manyheads.data.splits import check_text
from manyheads.generation.text import UNSURE

SHORTEN = "shorten it, or have it cut with truncate (--truncate)"


class Reader(Protocol):
    """What is asked of a predictor."""

    model: Any
    tokenizer: Tokenizer
    path: Any
    route: Route


class Read(NamedTuple):
    """A text, or a pair, as a model reads it."""

    ids: list[int]
    segments: list[int]
    side: Side

    def part(self, kept: Sequence[int]) -> Read:
        """The tokens at those places."""
        ids, segments = ([each[at] for at in kept] for each in (self.ids, self.segments))
        return Read(ids, segments, self.side.part(kept))


def read(tokenizer: Tokenizer, text: str, pair: str | None = None, *, special: bool = True) -> Read:
    """Tokens with the tokenizer's special ones. Raises ValueError for a text that has none of its own."""
    for name, each in (("text", text), ("second text", pair)):
        check_text(each or "", f"the {name}")
        if each is not None and not tokenizer.encode(each, add_special_tokens=False).ids:
            raise ValueError(f"the {name} is blank to the tokenizer: there is nothing to look at")
    encoding = tokenizer.encode(text, pair, add_special_tokens=special)
    return Read(encoding.ids, encoding.type_ids, side_of(encoding, (text, pair or "")))


class Written(NamedTuple):
    """What an `Encoding` would tell of ids whose text, encoded, need not give them again."""

    tokens: list[str]
    offsets: list[tuple[int, int]]
    word_ids: list[int]
    sequence_ids: list[int | None]


def read_ids(tokenizer: Tokenizer, ids: list[int]) -> Read:
    """Tokens that a model wrote."""
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    text, ends = "", list[int]()
    for after in range(1, len(ids) + 1):  # the text of a token can depend on those before it
        text = tokenizer.decode(ids[:after])
        ends.append(len(text.removesuffix(UNSURE)))
    starts = [0, *ends[:-1]]
    for at in reversed(range(len(ids) - 1)):  # parts of a character are shown as the whole one's
        if starts[at] >= ends[at] and ids[at] not in special:
            ends[at] = ends[at + 1]
    words = tokenizer.pre_tokenizer.pre_tokenize_str(text) if tokenizer.pre_tokenizer else []
    borders = [start for _, (start, _) in words]
    written = Written(
        [tokenizer.id_to_token(each) or f"[{each}]" for each in ids],
        list(zip(starts, ends, strict=True)),
        [bisect_right(borders, start) for start in starts],
        [None if each in special else 0 for each in ids],
    )
    return Read(ids, [0] * len(ids), side_of(written, (text,)))


def side_of(encoding: Encoding | Written, texts: Sequence[str]) -> Side:
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
        tokens.append(_shown(piece, token) if shared[number, (start, end)] == 1 else token)  # parts of a character
        words.append(word)
        before, last = (number, end, inner), (number, start, end)
    return Side(tuple(tokens), tuple(words))


def _shown(piece: str, token: str) -> str:
    return piece.strip() or ("⏎" if "\n" in piece else "␣" if piece else token)


def text_maps(reader: Reader, found: Read, title: str, *, truncate: bool = False, causal: bool = False,
              **choices: Any) -> AttentionMaps:  # fmt: skip
    """The maps of a model that reads one sequence; `choices` are axis, layers and heads of `attention_maps`."""
    room = getattr(reader.model.config, "max_positions", None)
    ids, segments, side = found
    if room is not None and len(ids) > room:
        if not truncate:
            raise ValueError(f"the text has {len(ids):,} tokens, the model takes {room:,}: {SHORTEN}")
        ids, segments, side = found.part(range(room))
    rows = [torch.tensor([ids], device=reader.route.device)]
    if any(segments):
        rows = [rows[0], torch.tensor([len(ids)], device=reader.route.device),
                torch.tensor([segments], device=reader.route.device)]  # fmt: skip
    if getattr(reader.model.config, "head", None) == "choice":
        rows = [row[:, None] for row in rows]  # one candidate
    sides = {"self": (side, side)}
    return _maps(reader, rows, sides, title, ("self",) if causal else (), **choices)


def check_pairs(model: Any, name: object) -> None:
    """Raises ValueError for a model that cannot tell two texts apart."""
    if not hasattr(model.config, "segment_types"):
        raise ValueError(f"{name}: this model reads single texts, not pairs")


def pair_title(text: str, pair: str | None) -> str:
    return text if pair is None else f"{text} | {pair}"


def translation_maps(
    reader: Reader, target_tokenizer: Tokenizer, source: str, target: str, *, truncate: bool = False,
    cut: bool = False, **choices: Any,
) -> AttentionMaps:  # fmt: skip
    """The maps of an encoder-decoder that reads the source and writes the target.

    A query of the decoder is the token that is being written there, a key what had been written before. With
    `truncate`, a source that is too long is cut as for a translation; with `cut`, a target is looked at as far as the
    model goes.
    """
    check_text(target, "the target")
    c = reader.model.config
    room = c.max_positions
    given, written = read(reader.tokenizer, source), target_tokenizer.encode(target)  # which may be empty
    wanted = Read(written.ids, written.type_ids, side_of(written, (target,)))
    if truncate and len(given.ids) > room:
        given = given.part([*range(room - 1), len(given.ids) - 1])  # and its end
    if cut:
        wanted = wanted.part(range(len(wanted.ids))[:room])
    for name, each in (("source", given), ("target", wanted)):
        if len(each.ids) > room:
            raise ValueError(f"the {name} has {len(each.ids):,} tokens, the model takes {room:,}: {SHORTEN}")
    start = target_tokenizer.id_to_token(c.start) or "[start]"
    begun = Side(
        (start if c.start != c.pad else "[start]", *wanted.side.tokens[:-1]), (SPECIAL, *wanted.side.words[:-1])
    )
    rows = [torch.tensor([ids], device=reader.route.device) for ids in (given.ids, [c.start, *wanted.ids[:-1]])]
    sides = {
        "encoder": (given.side, given.side), "decoder": (wanted.side, begun), "cross": (wanted.side, given.side),
    }  # fmt: skip
    title = f"{source} → {target}"
    return _maps(reader, [rows[0], None, rows[1]], sides, title, ("decoder", "cross"), **choices)


def image_maps(reader: Any, image: Any, title: str, **choices: Any) -> AttentionMaps:
    """The maps of a model that sees an image, and the image as it sees it."""
    import numpy as np

    pixels = torch.from_numpy(reader.preprocessing.array(image))[None].to(reader.route.device)
    picture = np.asarray(reader.preprocessing.framed(image), dtype=np.uint8)
    return _maps(reader, [pixels], None, title, (), picture=picture, **choices)


def _maps(
    reader: Any, inputs: Sequence[Tensor | None], sides: Sides | None, title: str, stepwise: Sequence[str],
    **choices: Any,
) -> AttentionMaps:  # fmt: skip
    model: nn.Module = reader.model
    with reader.route.computing():
        return attention_maps(
            model, *inputs, sides=sides, name=str(reader.path), title=title, stepwise=stepwise, **choices
        )


class TextPredictor:
    """A model that reads one text, or a pair, with its tokenizer, and its verb `attend`.

    done  what becomes of a text, for the error where there is no tokenizer
    """

    done: ClassVar = "read"

    def __init__(self, loaded: directory.Loaded, route: Route) -> None:
        if loaded.tokenizer is None:
            raise ValueError(f"{loaded.path} has no tokenizer.json: text cannot be {self.done} without one")
        self.model = loaded.model.to(route.device).eval()
        self.tokenizer = loaded.tokenizer
        self.path, self.family, self.route = loaded.path, loaded.family, route

    def __repr__(self) -> str:
        parameters = sum(p.numel() for p in self.model.parameters())
        return f"{type(self).__name__}({str(self.path)!r}, {self.family}, {parameters:,} parameters)"

    def attend(
        self,
        text: str,
        pair: str | None = None,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        axis: str | None = None,
        truncate: bool = False,
    ) -> AttentionMaps:
        """Where every head of every layer looks while the model reads a text, or a pair.

        layers, heads  their numbers, None for all
        truncate       cut a text that is longer than the model takes, instead of raising a ValueError
        """
        if pair is not None:
            check_pairs(self.model, self.path)
        found, title = self._read(text, pair), pair_title(text, pair)
        return text_maps(self, found, title, truncate=truncate, layers=layers, heads=heads, axis=axis)

    def _read(self, text: str, pair: str | None) -> Read:
        return read(self.tokenizer, text, pair)

"""From a trained language model to texts that go on, and to how well it predicts given ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar, Literal, SupportsIndex, TypeVar

import numpy as np
from tokenizers import Encoding

from manyheads.analysis.lens import Lens
from manyheads.analysis.maps import AttentionMaps, MapOptions
from manyheads.data.readers.texts import Texts
from manyheads.data.sources.running_text import TextSource
from manyheads.data.text.text_faults import ItemError, beginning, check_text, check_texts
from manyheads.errors import UserError
from manyheads.generation import Sampling, TextStream, sample
from manyheads.tasks.evaluation import Outcome, record_of, scored_data
from manyheads.tasks.language.task import text_metrics, token_losses
from manyheads.tasks.predictor import ModelWithTokenizer
from manyheads.tasks.tokenized_text import SHORTEN, tokenized, tokenized_ids
from manyheads.training.distributed_map import distributed_map

GENERATED_TOKENS = 16_384  # positions that a batch of texts may hold
LOGITS = 2**24  # of their next tokens
MOST_TOKENS = 100_000  # that are added to a text
LARGEST_SEED = 2**63 - 1
PIECE = 1000  # characters of a text at least, up to the end of a line, that two models are compared by


@dataclass(frozen=True)
class Continuation:
    """How a text went on. `reason`: it ended itself, met a stop string, or had as many tokens as were asked for."""

    prompt: str
    text: str
    tokens: int
    reason: Literal["end", "stop", "length"]

    def __str__(self) -> str:
        return self.prompt + self.text


P = TypeVar("P", str, list[str])
Tell = Callable[[int, str], None]  # the number of a text, and a piece of it


class LanguageModel(ModelWithTokenizer):
    """A trained language model with its tokenizer: what `manyheads.load` gives for GPT and GPT-2."""

    verbs: ClassVar = ("generate", "attend", "lens", "evaluate")
    done: ClassVar = "read or written"

    def generate(
        self,
        prompts: P,
        *,
        max_tokens: int = 100,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        repetition_penalty: float = 1.0,
        stop: str | Sequence[str] | None = (),
        seed: SupportsIndex | Sequence[SupportsIndex] = 0,
        stream: Tell | None = None,
    ) -> P:
        """Every text and how it goes on, in their order; an empty one begins as texts of the training data do.

        max_tokens  at most; a text that outgrows the model's positions goes on from its latter half
        stop        a string, or several: the first to appear ends the text before it; None: nothing does
        seed        of the first text; the following ones have the following numbers. Or one for every text.
        stream      told of each piece of text as soon as it is sure: the number of the text, from 0, and the piece
        The others are those of `Sampling`. Raises UserError for a text that the model cannot read.
        """
        sampling = Sampling(temperature, top_k, top_p, repetition_penalty)
        texts = [prompts] if isinstance(prompts, str) else prompts
        written = self.continuations(texts, sampling, max_tokens=max_tokens, stop=stop, seed=seed, stream=stream)
        return str(written[0]) if isinstance(prompts, str) else [str(continuation) for continuation in written]

    def continuations(
        self,
        prompts: Sequence[str],
        sampling: Sampling,
        *,
        max_tokens: int = 100,
        stop: str | Sequence[str] | None = (),
        seed: SupportsIndex | Sequence[SupportsIndex] = 0,
        stream: Tell | None = None,
    ) -> list[Continuation]:
        """What `generate` adds to every text, and why it ends there."""
        max_tokens = _whole("max_tokens", max_tokens, 1, MOST_TOKENS)
        if isinstance(seed, Iterable):
            seeds = [_whole("seed", number, 0, LARGEST_SEED) for number in seed]
        else:
            seeds = [_whole("seed", seed, 0, LARGEST_SEED) + i for i in range(len(prompts))]
        if len(seeds) != len(prompts):
            raise UserError(f"{len(seeds)} seeds for {len(prompts)} texts: give one for each, or the first one")
        stops = [stop] if isinstance(stop, str) else stop or ()
        if not isinstance(stops, Collection) or not all(isinstance(text, str) for text in stops):
            raise UserError(f"stop is {stop!r}: expected a string, several, or None")
        encoded = self.encode(prompts)
        context = self.model.config.max_positions
        longest = max(map(len, encoded), default=0)
        model, compute = self.compiled
        positions = min(context, longest + max_tokens)  # of a text
        rows = max(1, min(GENERATED_TOKENS // positions, LOGITS // self.model.config.vocab))

        def written(first: int) -> list[Continuation]:
            group = range(first, min(first + rows, len(encoded)))
            texts = [TextStream(self.tokenizer, encoded[i], [*stops]) for i in group]

            def tell(row: int, piece: str) -> None:
                if stream is not None and piece:
                    stream(first + row, piece)

            def over(row: int, token: int) -> bool:
                tell(row, texts[row].push(token))
                return texts[row].stopped

            given = sample(
                model.start, model.step, [encoded[i] for i in group], sampling, context=context,
                limits=[max_tokens] * len(group), seeds=[seeds[i] for i in group], end=self.end, over=over,
            )  # fmt: skip
            with compute.autocast():
                counts = Counter(row for step in given for row, _ in step)
            continuations: list[Continuation] = []
            for row, text in enumerate(texts):
                tell(row, text.finish())
                reason: Literal["end", "stop", "length"] = (
                    "stop" if text.stopped else "length" if counts[row] == max_tokens else "end"
                )
                continuations.append(Continuation(prompts[first + row], text.text, counts[row], reason))
            return continuations

        return [
            continuation for part in distributed_map(range(0, len(encoded), rows), written) for continuation in part
        ]

    def attend(
        self,
        text: str,
        *,
        max_tokens: int = 0,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        axis: str | None = None,
        truncate: bool = False,
        calculation: bool = False,
    ) -> AttentionMaps:
        """Where every head of every layer looks while the model reads a text, from left to right.

        max_tokens     so many tokens, the likeliest ones, are added to the text first
        layers, heads  their numbers, None for all
        calculation    also keep the queries, keys and values that the maps are computed from, for a page to show
        truncate       cut a text that is longer than the model takes, instead of raising a UserError
        """
        room = self.model.config.max_positions
        prompt = beginning(text, room) if truncate else text
        check_text(prompt, "the text", room, SHORTEN)
        ids = self._known(prompt, "the text").ids
        if not max_tokens:
            shown = tokenized(self.tokenizer, prompt, special=False)
        else:
            ids = ids or self.encode([prompt])[0]  # what an empty text begins with
            if len(ids) + max_tokens > room and not truncate:
                raise UserError(
                    f"max_tokens (--max-tokens) is {max_tokens:,}: expected at most {max(0, room - len(ids)):,}: the "
                    f"text has {len(ids):,} tokens, the model takes {room:,}"
                )
            shown = tokenized_ids(self.tokenizer, ids[:room] + self._likeliest(ids[:room], max_tokens))
            text = self.tokenizer.decode(shown.ids)
        options = MapOptions(axis, layers, heads, calculation)
        return self._text_maps(shown, text, options, truncate=truncate, stepwise=("self",))

    def lens(self, text: str, *, top: int = 5, truncate: bool = False) -> Lens:
        """What each layer would say follows each token of a text: the logit lens.

        top       so many tokens (at most 1000), likeliest first
        truncate  cut a text that is longer than the model takes, instead of raising a UserError
        """
        room = self.model.config.max_positions
        text = beginning(text, room) if truncate else text
        check_text(text, "the text", room, SHORTEN)
        self._known(text, "the text")
        rows, side = self._rows(tokenized(self.tokenizer, text, room=room, special=False), truncate)
        return self._lens("decoder", self.model.project, rows, side.tokens, text, top=top, tokenizer=self.tokenizer)

    def _likeliest(self, ids: list[int], max_tokens: int) -> list[int]:
        """How a text goes on, as far as the model's positions go."""
        room = self.model.config.max_positions
        model, compute = self.compiled
        steps = sample(
            model.start, model.step, [ids], Sampling(temperature=0), context=room,
            limits=[min(max_tokens, room - len(ids))], seeds=[0], end=self.end,
        )  # fmt: skip
        with compute.autocast():
            return [token for step in steps for _, token in step]

    def outcome(self, data: str | None = None, *, skip_bad_lines: bool = False) -> Outcome:
        """How many bits the test texts, or those of `data`, take; compared piece by piece."""
        record = record_of(self.path)
        windows = record.get("windows", {})
        context = windows.get("context", self.model.config.max_positions)
        stride = windows.get("stride", max(1, context // 2))
        split = record.get("scored") or record.get("data", {}).get("scored", "test")  # older records: in their data
        texts = scored_data(self.path, data, TextSource(), skip_bad_lines=skip_bad_lines, split=split)
        return self.score(texts, context=context, stride=stride)

    def score(self, texts: Texts, *, context: int, stride: int) -> Outcome:
        """Predict every token of the texts, in windows of `context` tokens, one every `stride` (see `token_losses`)."""
        pieces: list[str] = []
        ids: list[int] = []
        owners: list[int] = []  # of each token, its piece
        for number, text in enumerate(texts.texts, 1):
            encoding = self._known(text, f"test text {number}")
            if self.end is not None:
                ids.append(self.end)
                owners.append(max(0, len(pieces) - 1))  # where it ends the text before
            cuts = _pieces(text)
            starts = [start for start, _ in encoding.offsets]
            owners += (np.searchsorted(cuts, starts, "right") + len(pieces) - 1).tolist()
            ids += encoding.ids
            pieces += [text[a:b] for a, b in zip(cuts, [*cuts[1:], len(text)], strict=True)]
        # the very first token is not predicted: it is the end token, or else its bytes do not count
        sizes = np.array([len(piece.encode()) for piece in pieces])
        if self.end is None:
            sizes[0] -= len(self.tokenizer.decode(ids[:1]).encode())
        model, compute = self.compiled
        losses = token_losses(model, np.array(ids), compute, context=context, stride=stride)
        bits = np.bincount(owners[1:], weights=losses, minlength=len(pieces)) / math.log(2) / sizes.clip(min=1)
        metrics = text_metrics(losses, int(sizes.sum()), f"|windows of {context}, one every {stride}")
        outputs = [f"{size:.3f} bits a byte" for size in bits]
        # minus the bits: more is better
        return Outcome(pieces, outputs, [""] * len(pieces), (-bits).tolist(), metrics, unit="log2 probability a byte")

    @property
    def end(self) -> int | None:
        """The end token, where the tokenizer has it too."""
        end = self.model.config.end
        return end if end is not None and self.tokenizer.id_to_token(end) is not None else None

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """The ids of every prompt, at least one each. Raises UserError for a text that the model cannot read."""
        encoded, room = [], self.model.config.max_positions
        check_texts(prompts, room)
        for index, text in enumerate(prompts):
            ids = self._known(text, f"text {index + 1}", index).ids
            if len(ids) > room:
                raise ItemError(index, f"has {len(ids):,} tokens, the model takes {room:,}: shorten it")
            if not ids and self.end is None:
                raise ItemError(index, "is empty, and this vocabulary has no token that texts begin with")
            encoded.append(ids or [int(self.end or 0)])
        return encoded

    def _known(self, text: str, name: str, index: int = 0) -> Encoding:
        """The tokens of a text. Raises ItemError for a character that the vocabulary has not."""
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        unknown = getattr(self.tokenizer.model, "unk_token", None)
        if unknown is not None and unknown in encoding.tokens:
            start, after = encoding.offsets[encoding.tokens.index(unknown)]
            fault = f"has {text[start:after]!r} at character {start + 1}: it is not in the vocabulary"
            raise ItemError(index, fault, name)
        return encoding


def _pieces(text: str) -> list[int]:
    """Where the pieces of a text begin."""
    cuts = [0]
    while (end := text.find("\n", cuts[-1] + PIECE)) >= 0 and end + 1 < len(text):
        cuts.append(end + 1)
    return cuts


def _whole(name: str, value: Any, least: int, most: int) -> int:
    """A whole number, which may be one of NumPy's."""
    if not isinstance(value, Integral) or isinstance(value, bool) or not least <= int(value) <= most:
        raise UserError(f"{name} is {value!r}: expected a whole number from {least} to {most}")
    return int(value)

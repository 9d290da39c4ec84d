"""Predictor for language models, with text generation, attention maps, logit lens and evaluation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, SupportsIndex, TypeVar

import numpy as np
import torch
from tokenizers import Encoding
from torch import Tensor

from manyheads.analysis.lens import Lens, Tuned
from manyheads.analysis.maps import AttentionMaps, MapOptions
from manyheads.analysis.maps.sides import Side
from manyheads.analysis.readout import Readout
from manyheads.calls import checked_methods
from manyheads.data.readers.splits import SURROGATE, lone_surrogate
from manyheads.data.readers.texts import Texts
from manyheads.data.text.text_faults import ItemError, beginning, check_text, check_texts
from manyheads.errors import UserError
from manyheads.generation import Sampling, TextStream, sample
from manyheads.models.gpt import GPT
from manyheads.models.universal import UniversalSequence
from manyheads.tasks.encoding import unknown_token
from manyheads.tasks.evaluation import EvaluationResult, record_of, scored_data
from manyheads.tasks.explaining import ExplainsTexts
from manyheads.tasks.inputs import rows_of
from manyheads.tasks.language.arguments import check_integer, seeds_of, stop_strings
from manyheads.tasks.language.objective import text_metrics, token_losses
from manyheads.tasks.language.shots import check_room, completion_result, read_prompts
from manyheads.tasks.lens import HasLens
from manyheads.tasks.patching import Patches
from manyheads.tasks.tokenized_text import SHORTEN, tokenized, tokenized_ids
from manyheads.training.distributed_map import distributed_map

GENERATED_TOKENS = 16_384  # maximum number of tokens in a batch of texts during generation, summed over the texts
LOGITS = 2**24  # maximum number of logits that are computed at once
MAX_NEW_TOKENS = 100_000  # maximum number of tokens to generate for a text
MAX_SHOTS = 10_000  # maximum number of examples in a prompt
# For comparisons of two language models, the test text is divided into pieces, which are the items. A piece ends at the
# first line end after this number of characters.
MIN_PIECE = 1000


@dataclass(frozen=True)
class Continuation:
    """Generated continuation of a prompt.

    tokens  number of generated tokens
    reason  why generation ended: at the end-of-text token ("end"), a stop string ("stop"), or max_tokens ("length")
    """

    prompt: str
    text: str
    tokens: int
    reason: Literal["end", "stop", "length"]

    def __str__(self) -> str:
        return self.prompt + self.text


P = TypeVar("P", str, list[str])
# callback for streaming; it receives the index of a text and the next piece that was generated for this text
Stream = Callable[[int, str], None]


@checked_methods
class LanguageModel(HasLens[GPT | UniversalSequence], ExplainsTexts, Patches):
    """Trained language model with its tokenizer, as returned by `manyheads.load` for GPT and GPT-2."""

    verbs: ClassVar = ("generate", "attend", "lens", "explain", "patch", "evaluate")
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
        stream: Stream | None = None,
    ) -> P:
        """Return every prompt with its continuation, in input order.

        The continuation of an empty prompt starts like a text in the training data.

        max_tokens  maximum number of new tokens. If a text reaches the model's maximum length, generation continues
                    from the second half of the text
        stop        one or several stop strings. The continuation ends before the first stop string in it
        seed        seed of the first text, which increases by one for each further text; or a list of one seed per text
        stream      callback that receives the index of a text, counted from 0, and each new piece of this text

        The other arguments are the fields of `Sampling`. Raises UserError for a text that the model cannot read.

            >>> gpt.generate("the cat", max_tokens=3, seed=1).startswith("the cat")
            True
        """
        sampling = Sampling(temperature, top_k, top_p, repetition_penalty)
        texts, single = rows_of(prompts)
        results = self.continuations(texts, sampling, max_tokens=max_tokens, stop=stop, seed=seed, stream=stream)
        found: Any = [str(continuation) for continuation in results]
        return found[0] if single else found

    def continuations(
        self,
        prompts: str | Sequence[str],
        sampling: Sampling,
        *,
        max_tokens: int = 100,
        stop: str | Sequence[str] | None = (),
        seed: SupportsIndex | Sequence[SupportsIndex] = 0,
        stream: Stream | None = None,
    ) -> Any:
        """Return the continuation of every prompt, a `Continuation`, with the reason why its generation ended.

        >>> continuation = gpt.continuations("the cat", Sampling(temperature=0.7), max_tokens=3)
        >>> continuation.prompt, continuation.tokens <= 3
        ('the cat', True)
        """
        max_tokens = check_integer("max_tokens", max_tokens, 1, MAX_NEW_TOKENS)
        lines, single = rows_of(prompts)
        seeds = seeds_of(seed, len(lines))
        stops = stop_strings(stop)
        encoded = self.encode(lines)
        context = self.model.config.max_positions
        max_length = max(map(len, encoded), default=0)
        model = self.compiled
        # maximum length of prompt and continuation together, in tokens
        positions = min(context, max_length + max_tokens)
        rows = max(1, min(GENERATED_TOKENS // positions, LOGITS // self.model.config.vocab))

        def generate_rows(first: int) -> list[Continuation]:
            group = range(first, min(first + rows, len(encoded)))
            texts = [TextStream(self.tokenizer, encoded[i], stops) for i in group]

            def send(row: int, piece: str) -> None:
                if stream is not None and piece:
                    stream(first + row, piece)

            def is_finished(row: int, token: int) -> bool:
                send(row, texts[row].push(token))
                return texts[row].stopped

            steps = sample(
                model.start, model.step, [encoded[i] for i in group], sampling, context=context,
                limits=[max_tokens] * len(group), seeds=[seeds[i] for i in group], end=self.end,
                suppressed=self.unused, over=is_finished,
            )  # fmt: skip
            with model.compute.autocast():
                counts = Counter(row for step in steps for row, _ in step)
            continuations: list[Continuation] = []
            for row, text in enumerate(texts):
                send(row, text.finish())
                reason: Literal["end", "stop", "length"] = (
                    "stop" if text.stopped else "length" if counts[row] == max_tokens else "end"
                )
                continuations.append(Continuation(lines[first + row], text.text, counts[row], reason))
            return continuations

        parts = distributed_map(range(0, len(encoded), rows), generate_rows)
        found = [continuation for part in parts for continuation in part]
        return found[0] if single else found

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
        """Return the attention weights of every head in every layer while the model reads a text from left to right.

        max_tokens     number of tokens to generate greedily and append to the text before the model reads it
        layers, heads  indices of the layers and heads to return. By default, all are returned
        axis           kind of attention to return. By default, all kinds are returned
        calculation    if True, also return the queries, keys and values from which the weights are computed
        truncate       if True, cut a text that is longer than the model's limit. If False, such a text raises UserError

            >>> gpt.attend("the cat sat")["self"][1].weights.shape[:2]
            (1, 2)
        """
        limit = self.model.config.max_positions
        prompt = beginning(text, limit) if truncate else text
        check_text(prompt, "the text", limit, SHORTEN)
        ids = self._encode_text(prompt, "the text").ids
        if not max_tokens:
            shown = tokenized(self.tokenizer, prompt, special=False)
        else:
            ids = ids or self.encode([prompt])[0]  # For an empty text, the model reads a single start token.
            if len(ids) + max_tokens > limit and not truncate:
                raise UserError(
                    f"max_tokens (--max-tokens) is {max_tokens:,}: expected at most {max(0, limit - len(ids)):,}. "
                    f"The text has {len(ids):,} tokens, the model takes {limit:,}."
                )
            shown = tokenized_ids(self.tokenizer, ids[:limit] + self._continue_greedily(ids[:limit], max_tokens))
            text = self.tokenizer.decode(shown.ids)
        options = MapOptions(axis, layers, heads, calculation)
        return self._text_maps(shown, text, options, truncate=truncate, stepwise=("self",))

    def lens(self, text: str, *, top: int = 5, truncate: bool = False, tuned: Tuned = None) -> Lens:
        """Return the lens of a text: the next tokens that each layer would predict after each token.

        top       number of tokens for each layer and position, likeliest first, at most 1000
        truncate  if True, cut a text that is longer than the model's limit. If False, such a text raises UserError
        tuned     tuned lens of this model, or the file to which it was saved. By default, the logit lens

            >>> lens = gpt.lens("the cat", top=2)
            >>> lens.layers
            ('embedding', 0, 1)
        """
        rows, side, text = self._read(text, truncate)
        return self._lens(rows, side.tokens, text, top, tuned, self.tokenizer)

    def _tuning_inputs(self, texts: Sequence[str]) -> Iterator[Sequence[Tensor]]:
        whole, limit = tokenized(self.tokenizer, "\n".join(texts), special=False), self.model.config.max_positions
        for start in range(0, len(whole.ids), limit):
            yield [torch.tensor([whole.ids[start : start + limit]])]

    def readout(self, text: str, *, truncate: bool = False) -> Readout:
        """Return the prediction of the token that follows a text, for an analysis.

        >>> found = gpt.readout("the cat")
        >>> found.names.name(found.names.index(" cat"))
        ' cat'
        """
        rows, side, text = self._read(text, truncate)
        return self._readout(
            rows, side, text, position=len(side) - 1, names=self._words(), select=lambda logits: logits[:, -1]
        )

    def _read(self, text: str, truncate: bool) -> tuple[list[Tensor], Side, str]:
        """Return the inputs of the model for a text, its tokens, and the text as it is read."""
        limit = self.model.config.max_positions
        text = beginning(text, limit) if truncate else text
        check_text(text, "the text", limit, SHORTEN)
        self._encode_text(text, "the text")
        rows, side = self._model_inputs(tokenized(self.tokenizer, text, max_tokens=limit, special=False), truncate)
        return rows, side, text

    def _continue_greedily(self, ids: list[int], max_tokens: int) -> list[int]:
        """Return a text with its greedy continuation, up to the model's maximum length."""
        limit = self.model.config.max_positions
        model = self.compiled
        steps = sample(
            model.start, model.step, [ids], Sampling(temperature=0), context=limit,
            limits=[min(max_tokens, limit - len(ids))], seeds=[0], end=self.end,
            suppressed=self.unused,
        )  # fmt: skip
        with model.compute.autocast():
            return [token for step in steps for _, token in step]

    def evaluate(self, data: object = None, *, shots: int | None = None) -> EvaluationResult:
        """Evaluate the model, as `outcome` does."""
        return self.outcome(data, shots=shots)

    def outcome(
        self, data: object = None, *, skip_bad_lines: bool = False, shots: int | None = None
    ) -> EvaluationResult:
        """Evaluate the model in bits per byte on the test texts of its training run, or on `data`.

        The result has one value for each piece of the test text, so that two models can be compared piece by piece.

        shots  if given, evaluate in-context learning instead: `data` are pairs of input and output, the model reads
               this number of examples before each input, and its greedy completion of the line is compared with the
               output (`exact_match`)
        """
        if shots is not None:
            return self._complete_pairs(data, check_integer("shots", shots, 0, MAX_SHOTS), skip_bad_lines)
        from manyheads.data.sources.running_text import TextSource

        record = record_of(self.path)
        windows = record.get("windows", {})
        texts = scored_data(
            self.path, data, TextSource(), skip_bad_lines=skip_bad_lines, split=record.get("scored", "test")
        )  # fmt: skip
        return self.score(texts, context=windows.get("context"), stride=windows.get("stride"))

    def _complete_pairs(self, data: object, shots: int, skip_bad_lines: bool) -> EvaluationResult:
        """Return the result of completing the outputs of pairs after `shots` examples."""
        tests, texts = read_prompts(data, shots, skip_bad_lines=skip_bad_lines)
        answers = self.tokenizer.encode_batch([f" {text}\n" for text in tests.targets], add_special_tokens=False)
        room = max(len(answer.ids) for answer in answers)
        lengths = (len(self._encode_text(text, f"prompt {number}").ids) for number, text in enumerate(texts, 1))
        check_room(lengths, room, self.model.config.max_positions)
        found = self.continuations(texts, Sampling(temperature=0), max_tokens=room, stop="\n")
        return completion_result(tests, [continuation.text for continuation in found], shots)

    def perplexity(self, texts: str | Sequence[str]) -> float:
        """Return the perplexity of one or more texts: the exponential of the mean loss of their tokens."""
        return float(self.score(texts).metrics["perplexity"]["value"])

    def score(
        self, texts: Texts | str | Sequence[str], *, context: int | None = None, stride: int | None = None
    ) -> EvaluationResult:
        """Return the result of predicting every token of one or more texts (see `token_losses`).

        context  number of tokens in a window that the model reads. By default, the model's maximum
        stride   number of tokens between the starts of two windows. By default, half of `context`
        """
        context = context or self.model.config.max_positions
        stride = stride or max(1, context // 2)
        lines = texts.texts if isinstance(texts, Texts) else rows_of(texts)[0]
        pieces: list[str] = []
        ids: list[int] = []
        piece_of_token: list[int] = []  # index of the piece of the test text that contains each token
        for number, text in enumerate(lines, 1):
            encoding = self._encode_text(text, f"test text {number}")
            if self.end is not None:
                ids.append(self.end)
                piece_of_token.append(max(0, len(pieces) - 1))  # An end-of-text token belongs to the text that it ends.
            offsets = _piece_offsets(text)
            starts = [start for start, _ in encoding.offsets]
            piece_of_token += (np.searchsorted(offsets, starts, "right") + len(pieces) - 1).tolist()
            ids += encoding.ids
            pieces += [text[a:b] for a, b in zip(offsets, [*offsets[1:], len(text)], strict=True)]
        # The first token of the test text cannot be predicted. It is the end-of-text token, or else the byte count
        # excludes it.
        sizes = np.array([len(piece.encode()) for piece in pieces])
        if self.end is None:
            sizes[0] -= len(self.tokenizer.decode(ids[:1]).encode())
        model = self.compiled
        losses = token_losses(model.module, np.array(ids), model.compute, context=context, stride=stride)
        bits = np.bincount(piece_of_token[1:], weights=losses, minlength=len(pieces)) / math.log(2) / sizes.clip(min=1)
        metrics = text_metrics(losses, int(sizes.sum()), f"|windows of {context}, one every {stride}")
        outputs = [f"{size:.3f} bits per byte" for size in bits]
        # The quality score must be higher for a better model, so it is the negative number of bits.
        return EvaluationResult(
            pieces, outputs, [""] * len(pieces), (-bits).tolist(), metrics, unit="log2 probability a byte"
        )

    @property
    def end(self) -> int | None:
        """Id of the end-of-text token, or None if the tokenizer does not have it."""
        end = self.model.config.end
        return end if end is not None and self.tokenizer.id_to_token(end) is not None else None

    @cached_property
    def unused(self) -> list[int]:
        """Ids without a token, which are never generated. Some models have more output rows than tokens."""
        vocabulary = self.model.config.vocab
        known = {*self.tokenizer.get_vocab().values()} if self.tokenizer.get_vocab_size() < vocabulary else None
        return [] if known is None else [token for token in range(vocabulary) if token not in known]

    def encode(self, prompts: str | Sequence[str]) -> Any:
        """Return the token ids of every prompt, a list of int. Every prompt gets at least one token.

        Raises UserError for a text that the model cannot read.

            >>> gpt.tokenizer.decode(gpt.encode("the cat"))
            'the cat'
        """
        encoded, limit = [], self.model.config.max_positions
        lines, single = rows_of(prompts)
        check_texts(lines, limit)
        for index, text in enumerate(lines):
            ids = self._encode_text(text, f"text {index + 1}", index).ids
            if len(ids) > limit:
                raise ItemError(index, f"has {len(ids):,} tokens, the model takes {limit:,}: shorten it")
            if not ids and self.end is None:
                raise ItemError(index, "is empty, but the vocabulary has no start token: write at least one character")
            encoded.append(ids or [int(self.end or 0)])
        return encoded[0] if single else encoded

    def _encode_text(self, text: str, name: str, index: int = 0) -> Encoding:
        """Return the token ids of a text. Raises ItemError for a character that is not in the vocabulary."""
        if lone_surrogate(text) is not None:
            raise ItemError(index, f"{SURROGATE[0]}; give valid UTF-8", name)
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        unknown = unknown_token(self.tokenizer)
        if unknown is not None and unknown in encoding.tokens:
            start, after = encoding.offsets[encoding.tokens.index(unknown)]
            fault = f"has {text[start:after]!r} at character {start + 1}, which is not in the vocabulary"
            raise ItemError(index, fault, name)
        return encoding


def _piece_offsets(text: str) -> list[int]:
    """Split a text into pieces for comparison, and return their start offsets."""
    offsets = [0]
    while (end := text.find("\n", offsets[-1] + MIN_PIECE)) >= 0 and end + 1 < len(text):
        offsets.append(end + 1)
    return offsets

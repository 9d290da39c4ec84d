"""Predictor for masked language models: it fills the mask token of the tokenizer, such as [MASK] or <mask>."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import pairwise
from typing import ClassVar, NamedTuple, overload

import torch
from tokenizers.models import WordPiece
from torch import Tensor

from manyheads import directory
from manyheads.analysis.lens import Lens, Tuned
from manyheads.analysis.maps.sides import SPECIAL, Side
from manyheads.analysis.readout import Readout
from manyheads.calls import checked_methods
from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import pad
from manyheads.data.text.pretraining import (
    Epoch,
    PretrainingData,
    Rules,
    Special,
    continuations,
    mask_token,
)
from manyheads.data.text.text_faults import ItemError, beginning, check_text, check_texts
from manyheads.data.text.tokenized_documents import TokenizedDocuments
from manyheads.data.text.tokenizers import with_special_tokens
from manyheads.data.text.windows import SpecialTokenTemplate, positions_after_truncation
from manyheads.errors import UserError
from manyheads.models.bert import Bert
from manyheads.tasks.evaluation import EvaluationResult, record_of, scored_data
from manyheads.tasks.explaining import ExplainsTexts
from manyheads.tasks.inputs import Texts, rows_of
from manyheads.tasks.lens import HasLens
from manyheads.tasks.masked_words.objective import mean_scores, scores
from manyheads.tasks.patching import Patches
from manyheads.tasks.predictor import TextPredictor
from manyheads.tasks.tokenized_text import SHORTEN, TokenizedText, side_of
from manyheads.training.distributed_map import distributed_map

MAX_TEXTS = 32  # maximum number of texts whose masks are filled in one batch
LOGITS = 2**24  # maximum number of logits computed at once for masked tokens; one text with many masks may need more
MAX_WORDS = 1000  # maximum number of predicted words for one mask
MAX_TOTAL_WORDS = 10_000  # maximum number of predicted words for all masks of a text together


class Fill(NamedTuple):
    """Prediction for the mask of a text, or for all masks of a text with several masks.

    token        predicted word; for several masks, one word per mask, separated by spaces
    probability  probability of the word; for several masks, the product of the words' probabilities, because each mask
                 is predicted independently
    text         text in which the masks are replaced. A subword such as "##s" is joined to the word before it
    """

    token: str
    probability: float
    text: str

    def __str__(self) -> str:
        return self.text


@checked_methods
class MaskedLanguageModel(HasLens[Bert], TextPredictor[Bert], ExplainsTexts, Patches):
    """BERT with a head for predicting masked words, and its tokenizer, as returned by `manyheads.load`."""

    verbs: ClassVar = ("fill", "embed", "attend", "lens", "explain", "patch", "evaluate")
    stack: ClassVar = "encoder"

    def __init__(self, loaded: directory.Loaded, compute: ComputeConfig) -> None:
        super().__init__(loaded, compute)
        self.special = Special.of(self.tokenizer)
        # `Special.of` has raised an error if the tokenizer has no mask token.
        self.mask = mask_token(self.tokenizer) or ""

    @overload
    def fill(self, texts: str, top: int = 5) -> list[Fill]: ...
    @overload
    def fill(self, texts: Texts, top: int = 5) -> list[list[Fill]]: ...
    def fill(self, texts: str | Texts, top: int = 5) -> list[Fill] | list[list[Fill]]:
        """Return the `top` likeliest words (at most 1000) for the mask of every text, best first.

        The mask is the tokenizer's mask token, such as [MASK] or <mask>. Raises UserError for a text without a mask or
        longer than the model's limit, and if `top` times the number of masks is over 10,000.

            >>> fills = bert.fill("the [MASK] sat", top=3)
            >>> len(fills), fills[0].probability >= fills[1].probability
            (3, True)
        """
        if not 1 <= top <= MAX_WORDS:
            raise UserError(f"top is {top}: expected 1 to {MAX_WORDS}")
        lines, single = rows_of(texts)
        check_texts(lines, self._max_tokens)
        encoded = [self._encode(text, index) for index, text in enumerate(lines)]
        masks = [ids.count(self.special.mask) for ids in encoded]
        for index, count in enumerate(masks):
            if count * top > MAX_TOTAL_WORDS:
                fault = f"has {count:,} masks and top is {top:,}: expected at most {MAX_TOTAL_WORDS:,} words in all"
                raise ItemError(index, fault)
        compiled = self.compiled
        model = compiled.module

        def fill_rows(rows: range) -> list[list[Fill]]:
            batch_texts, ids = lines[rows.start : rows.stop], encoded[rows.start : rows.stop]
            batch = torch.from_numpy(pad(ids, self.model.config.pad)).to(self.compute.device)
            masked = batch == self.special.mask
            with torch.inference_mode(), compiled.compute.autocast():
                states = model.encode(batch, torch.tensor([len(i) for i in ids], device=batch.device))
                # logits of all masks (N, V), in the order of the texts and of the masks in a text
                logits = model.words(states[masked]).float()
            best, words = logits.topk(min(top, logits.shape[1]))
            best, counts = best - logits.logsumexp(-1, keepdim=True), masks[rows.start : rows.stop]
            return [
                [
                    self._make_fill(text, math.exp(total), word_ids)
                    for total, word_ids in _best_combinations(p.tolist(), w.tolist(), top)
                ]
                for text, p, w in zip(batch_texts, best.split(counts), words.split(counts), strict=True)
            ]

        groups = _group_texts(masks, LOGITS // self.model.config.vocab)
        found = [fills for part in distributed_map(groups, fill_rows) for fills in part]
        return found[0] if single else found

    def lens(
        self, text: str, pair: str | None = None, *, top: int = 5, truncate: bool = False, tuned: Tuned = None
    ) -> Lens:
        """Return the lens of a text: the words that each layer would predict at each position, masked or not.

        top       number of words for each layer and position, likeliest first, at most 1000
        truncate  if True, cut a text that is longer than the model's limit. If False, such a text raises UserError
        tuned     tuned lens of this model, or the file to which it was saved. By default, the logit lens

            >>> lens = bert.lens("the [MASK] sat", top=1)
            >>> len(lens.words) == len(lens.layers)
            True
        """
        rows, side = self._model_inputs(self._tokenized(text, pair, truncate), truncate)
        title = text if pair is None else f"{text} | {pair}"
        return self._lens(rows, side.tokens, title, top, tuned, self.tokenizer)

    def _tuning_inputs(self, texts: Sequence[str]) -> Iterable[Sequence[Tensor]]:
        return (self._model_inputs(self._tokenized(text, None, True), True)[0] for text in texts)

    def _project(self, states: Tensor) -> Tensor:
        return self.model.words(states)

    def readout(self, text: str, pair: str | None = None, *, truncate: bool = False) -> Readout:
        """Return the prediction of the first masked word of a text, or of a pair of texts, for an analysis.

        >>> bert.readout("the [MASK] sat").position
        2
        """
        rows, side = self._model_inputs(self._tokenized(text, pair, truncate), truncate)
        ids = rows[0][0].tolist()
        if self.special.mask not in ids:
            raise UserError(f"the text has no {self.mask}: write {self.mask} in place of the word to predict")
        position = ids.index(self.special.mask)
        words = (SPECIAL if token == self.special.mask else word for token, word in zip(ids, side.words, strict=True))
        side = replace(side, words=tuple(words))  # A mask is no word of the text.

        def select(output: Tensor | tuple[Tensor, Tensor]) -> Tensor:
            words = output[0] if isinstance(output, tuple) else output  # The head "pretraining" also returns a label.
            return words[:, position]

        title = text if pair is None else f"{text} | {pair}"
        return self._readout(rows, side, title, position=position, names=self._words(), select=select)

    def evaluate(self, data: object = None) -> EvaluationResult:
        """Evaluate the model, as `outcome` does."""
        return self.outcome(data)

    def outcome(self, data: object = None, *, skip_bad_lines: bool = False) -> EvaluationResult:
        """Evaluate the prediction of masked words on the validation data of the training run, or on `data`.

        The words to mask are selected by the settings of the training run.
        """
        epoch = self._masked_data(data, skip_bad_lines)
        model = self.compiled
        examples = list(scores(model.module, epoch, model.compute, 128 * MAX_TEXTS))
        values = mean_scores(examples)
        rules = f"{sum(len(score.words) for score in examples):,} masked words, at most {epoch.lengths.max()} tokens"
        return EvaluationResult(
            [self._decode(score.example.tokens) for score in examples],
            [self._decode(score.words) for score in examples],
            [self._decode(score.example.answers) for score in examples],
            [score.right / len(score.words) for score in examples],
            {name: {"value": value, "signature": rules} for name, value in values.items()},
        )

    def _encode(self, text: str, index: int) -> list[int]:
        parts = self._split_at_masks(text)
        if len(parts) == 1:
            raise ItemError(index, f"has no {self.mask}: write {self.mask} in place of the word to predict")
        ids: list[int] = []
        for encoding in self.tokenizer.encode_batch(parts, add_special_tokens=False):
            ids += [*encoding.ids, self.special.mask]
        ids_with_special, _ = SpecialTokenTemplate.of(self.tokenizer).around(ids[:-1])
        limit = self.model.config.max_positions
        if len(ids_with_special) > limit:
            raise ItemError(index, f"has {len(ids_with_special)} tokens, the model takes {limit}: shorten it")
        return ids_with_special

    def _tokenized(self, text: str, pair: str | None, truncate: bool) -> TokenizedText:
        """Tokenize a text or a pair. The characters of the mask token, such as "[MASK]", become a mask token.

        The tokenizer by itself may encode these characters as ordinary text.
        """
        if pair is not None or self.mask not in text:
            return super()._tokenized(text, pair, truncate)
        limit = self.model.config.max_positions
        text = beginning(text, limit) if truncate else text
        check_text(text, "the text", limit, SHORTEN)
        ids: list[int] = []
        tokens: list[str] = []
        words: list[int] = []
        for part in self._split_at_masks(text):
            encoding = self.tokenizer.encode(part, add_special_tokens=False)
            side, first = side_of(encoding, (part,)), max(words, default=SPECIAL) + 1
            ids += [*encoding.ids, self.special.mask]
            tokens += [*side.tokens, self.mask]
            words += [*(first + word for word in side.words), first + len(side)]
        frame = SpecialTokenTemplate.of(self.tokenizer)
        before, after = ([self._decode([token]) for token, _ in part] for part in (frame.before, frame.after))
        around = [SPECIAL] * len(before), [SPECIAL] * len(after)
        side = Side((*before, *tokens[:-1], *after), (*around[0], *words[:-1], *around[1]))
        whole = TokenizedText(*frame.around(ids[:-1]), side)
        return (
            whole.part(positions_after_truncation([None if word == SPECIAL else 0 for word in side.words], limit))
            if truncate
            else whole
        )

    def _split_at_masks(self, text: str) -> list[str]:
        """Split a text at the mask tokens, and remove spaces that are part of a mask token."""
        added = self.tokenizer.get_added_tokens_decoder().get(self.special.mask)
        parts = text.split(self.mask)
        # In RoBERTa, the predicted word includes the space before the word, so that space is removed from the text.
        if added is not None and added.lstrip:
            parts = [*(part.rstrip() for part in parts[:-1]), parts[-1]]
        return parts

    def _make_fill(self, text: str, probability: float, words: Sequence[int]) -> Fill:
        pieces = [self._token_text(word) for word in words]
        filled, *rest = self._split_at_masks(text)
        for piece, after in zip(pieces, rest, strict=True):
            inner = piece.startswith("##")
            filled = (filled.rstrip() if inner else filled) + piece.removeprefix("##" if inner else "") + after
        return Fill(
            " ".join(piece.strip() for piece in pieces), probability, filled if text[:1].isspace() else filled.lstrip()
        )

    def _token_text(self, word: int) -> str:
        """Return a token of the vocabulary in the form in which it appears in a text.

        In WordPiece, "##s" continues a word. In byte-level BPE, a word starts with its space, as in " dog".
        """
        if isinstance(self.tokenizer.model, WordPiece):
            return self.tokenizer.id_to_token(word) or ""
        return self._decode([word])

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def _masked_data(self, data: object, skip_bad_lines: bool) -> Epoch:
        """Mask words of the validation documents, or of the documents in `data`, as in the first epoch of training."""
        from manyheads.data.sources.running_text import DocumentSource

        record = record_of(self.path)
        usual = {"length": min(Rules().length, self.model.config.max_positions), "next_sentence": False}
        rules = record.get("rules", usual)
        documents = scored_data(self.path, data, DocumentSource(), skip_bad_lines=skip_bad_lines, split="validation")
        # The characters "[MASK]" in a document are plain text, not a mask, as in training.
        as_text = with_special_tokens(self.tokenizer, as_text=True)
        tokenized = TokenizedDocuments.of(documents.documents, as_text)
        return PretrainingData(
            tokenized, Rules(**rules), self.special, self.model.config.vocab, seed=record.get("seed", 1),
            inner=continuations(self.tokenizer.get_vocab()),
        ).epoch(0)  # fmt: skip


def _group_texts(masks: Sequence[int], max_masks: int) -> list[range]:
    """Divide texts into groups whose masks are filled in one batch, and return ranges of text indices.

    A group has at most `MAX_TEXTS` texts and at most `max_masks` masks. A text with more masks forms its own group.

    masks  number of masks in each text
    """
    starts, masks_in_group = [0], 0
    for index, count in enumerate(masks):
        if index - starts[-1] == MAX_TEXTS or (index > starts[-1] and masks_in_group + count > max_masks):
            starts.append(index)
            masks_in_group = 0
        masks_in_group += count
    return [range(*ends) for ends in pairwise([*starts, len(masks)])]


def _best_combinations(scores: list[list[float]], words: list[list[int]], count: int) -> list[tuple[float, list[int]]]:
    """Return the likeliest combinations of one word for each of M masks, best first, with their log-probabilities.

    scores  log-probabilities of the likeliest words of each mask, best first, (M, count)
    words   ids of these words, (M, count)
    """
    # for each mask, the best combinations: (index of the combination for the earlier masks, word for this mask)
    totals, choices = [0.0], list[list[tuple[int, int]]]()
    for p, w in zip(scores, words, strict=True):
        best: list[tuple[float, int, int]] = []
        candidates = [(-totals[0] - p[0], 0, 0)]  # heap of candidates for the next best combination of words
        while candidates and len(best) < count:
            loss, previous, rank = heappop(candidates)
            best.append((loss, previous, rank))
            if rank + 1 < len(p):
                heappush(candidates, (-totals[previous] - p[rank + 1], previous, rank + 1))
            if rank == 0 and previous + 1 < len(totals):
                heappush(candidates, (-totals[previous + 1] - p[0], previous + 1, 0))
        totals = [-loss for loss, _, _ in best]
        choices.append([(previous, w[rank]) for _, previous, rank in best])
    combinations = []
    for index, total in enumerate(totals):
        word_ids = []
        for of_mask in reversed(choices):
            index, word = of_mask[index]
            word_ids.append(word)
        combinations.append((total, word_ids[::-1]))
    return combinations

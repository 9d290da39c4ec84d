"""Attention maps between the words of a text, computed from the attention between its tokens.

As in Clark et al. 2019, section 4.1, attention to a word is the sum over its tokens, and attention from a word is the
mean over its tokens. Special tokens are dropped, so the weights of a word may sum to less than 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from tokenizers import Tokenizer
from torch import Tensor

from manyheads.analysis.heads import HeadStatistics
from manyheads.core.config import Config
from manyheads.core.interface import Encodes, Generates, Model
from manyheads.core.recording import record, tapped
from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import pad, token_batches
from manyheads.data.text.windows import SpecialTokenTemplate
from manyheads.errors import UserError
from manyheads.models.bert_features import BertFeatures
from manyheads.models.encoder_decoder import EncoderDecoder
from manyheads.models.recurrence import RecurrenceConfig, record_halting

BATCH_TOKENS = 1024  # maximum number of tokens in a batch, padding included


class LoadedModel(Protocol):
    """Protocol of a predictor whose attention maps between words can be computed, as `manyheads.load` returns it."""

    @property
    def model(self) -> Model[Config]: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def path(self) -> Path: ...
    @property
    def compute(self) -> ComputeConfig: ...


class Words(NamedTuple):
    """Text as a list of words.

    spaces  True for each word that a space precedes
    """

    words: Sequence[str]
    spaces: Sequence[bool]


class WordMaps(NamedTuple):
    """Attention maps between the words of a text.

    number  index of the text
    maps    (L, H, W, W) attention maps of L layers with H heads for W words, on the CPU
    seen    True for each word that has at least one token
    """

    number: int
    maps: Tensor
    seen: list[bool]


class WordReader:
    """Reader that returns a model's attention maps between words, for texts given as lists of words.

    For an encoder-decoder, the text is the source, and the maps are those of the encoder.

    max_tokens  maximum number of tokens in a text, including special tokens; None if there is no limit
    layers      names of the layers whose attention is recorded; empty before the first text is read. A layer that is
                applied several times has a name for each application
    too_long    number of texts that were skipped because they have more than `max_tokens` tokens
    unseen      number of words in the other texts for which the tokenizer gave no token

    Every word is tokenized separately, with its space if the tokenizer uses it, so that no token spans two words.
    Raises UserError for a model that cannot read a text, or has no attention.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        tokenizer = getattr(loaded, "tokenizer", None)
        model: Model[Config] = loaded.model.bert if isinstance(loaded.model, BertFeatures) else loaded.model
        if not isinstance(tokenizer, Tokenizer):
            raise UserError(f"{loaded.path}: expected a model that reads texts")
        if not tapped(model):
            raise UserError(f"{loaded.path}: {type(model).__name__} has no attention heads to probe")
        self.tokenizer, self.model, self.compute = tokenizer, model, loaded.compute
        self.frame = SpecialTokenTemplate.of(self.tokenizer)
        self._spaced = self.tokenizer.encode("a", add_special_tokens=False).ids != (
            self.tokenizer.encode(" a", add_special_tokens=False).ids
        )
        self._pieces: dict[str, list[int]] = {}
        self.max_tokens = model.max_positions
        self.layers: tuple[str, ...] = ()
        self.too_long = self.unseen = 0

    def pieces(self, text: Words) -> list[list[int]]:
        """Return the token ids of each word in a text."""
        spellings = [" " * (space and self._spaced) + word for word, space in zip(text.words, text.spaces, strict=True)]
        new = [word for word in dict.fromkeys(spellings) if word not in self._pieces]
        for word, encoding in zip(new, self.tokenizer.encode_batch(new, add_special_tokens=False), strict=True):
            self._pieces[word] = encoding.ids
        return [self._pieces[word] for word in spellings]

    def length(self, text: Words) -> int:
        """Return the number of tokens in a text, without special tokens."""
        return sum(map(len, self.pieces(text)))

    def maps(self, texts: Sequence[Words], statistics: HeadStatistics | None = None) -> Iterator[WordMaps]:
        """Yield the attention maps of every text that the model's maximum length allows, in any order.

        statistics  statistics of the attention heads. The attention maps between tokens are added to them
        """
        pieces = [self.pieces(text) for text in texts]
        lengths = [sum(map(len, words)) + len(self.frame) for words in pieces]
        max_tokens = self.max_tokens or max(lengths, default=0)
        usable = [i for i, length in enumerate(lengths) if len(self.frame) < length <= max_tokens]
        self.too_long += sum(length > max_tokens for length in lengths)
        self.unseen += sum(not word for i in usable for word in pieces[i])
        sizes = [lengths[i] for i in usable]
        for rows in token_batches(sizes, sizes, max([BATCH_TOKENS, *sizes]), seed=0, epoch=0):
            numbers = [usable[row] for row in rows]
            yield from self._batch(numbers, [pieces[i] for i in numbers], statistics)

    def vectors(self, text: Words) -> Tensor:
        """Return a vector for each word, (W, V), that does not depend on its context.

        It is the mean of the embeddings of the word's tokens, divided by the standard deviation of the embeddings.
        """
        name = "source_embedding" if isinstance(self.model, EncoderDecoder) else "embedding"
        weight = self.model.get_parameter(f"{name}.weight").detach().float().cpu()
        means = [weight[ids].mean(0) if ids else weight.new_zeros(weight.shape[1]) for ids in self.pieces(text)]
        return torch.stack(means) / weight.std()

    def _batch(
        self, numbers: Sequence[int], pieces: Sequence[Sequence[Sequence[int]]], statistics: HeadStatistics | None
    ) -> Iterator[WordMaps]:
        texts = [self.frame.around([token for word in words for token in word])[0] for words in pieces]
        pad_id = self.model.source_pad if isinstance(self.model, EncoderDecoder) else self.model.pad or 0
        padded = torch.from_numpy(pad(texts, pad_id))
        lengths = torch.tensor([len(ids) for ids in texts])
        maps = self.token_maps(padded, lengths)
        if statistics is not None:
            statistics.add(maps, lengths, self._special(padded, lengths))
        self.layers = tuple(maps)
        membership = torch.zeros(*padded.shape, max(map(len, pieces)))  # (B, T, W)
        for row, words in zip(membership, pieces, strict=True):
            at = len(self.frame.before)
            for number, word in enumerate(words):
                row[at : at + len(word), number] = 1.0
                at += len(word)
        mean = (membership / membership.sum(1, keepdim=True).clamp(min=1)).transpose(1, 2)  # (B, W, T)
        # attention maps between words, (B, L, H, W, W)
        merged = torch.stack([mean[:, None] @ map @ membership[:, None] for map in maps.values()], 1)
        for number, words, padded_maps in zip(numbers, pieces, merged, strict=True):
            yield WordMaps(number, padded_maps[..., : len(words), : len(words)], [bool(word) for word in words])

    def token_maps(self, padded: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """Return the attention maps between tokens for each layer and step, (B, H, T, T).

        In a model with adaptive halting, the attention weights of a halted position are zero, even if other positions
        of the batch continue.
        """
        tokens, model, config = padded.shape[1], self.model, self.model.config
        with torch.inference_mode(), self.compute.autocast(), record_halting(model) as halting, record(model) as maps:
            ids, sizes = padded.to(self.compute.device), lengths.to(self.compute.device)
            if isinstance(model, EncoderDecoder):
                model.start(ids, sizes, 1)  # For an encoder-decoder, `start` runs only the encoder, on the source text.
            else:
                # Run the model without its output head if possible, because the head may be larger than the rest of the
                # model.
                encode = model.encode if isinstance(model, Encodes) else None
                forward: Callable[..., object] = model.hidden if isinstance(model, Generates) else encode or model
                forward(ids, sizes)
        steps = config.steps if isinstance(config, RecurrenceConfig) else 1
        by_step = {}
        for name, calls in maps.items():
            halts = next((ponder.steps.cpu() for stack, ponder in halting.items() if name.startswith(stack)), None)
            for step, map in enumerate(calls, 1):
                # A text classifier appends a padding token. Cut its row and column off the map.
                step_map = map[..., :tokens, :tokens].float().cpu()
                step_map = step_map if halts is None else step_map * (halts >= step)[:, None, :, None]
                by_step[name if steps == 1 else f"{name} step {step}"] = step_map
            for step in range(len(calls) + 1, steps + 1 if calls else 0):
                by_step[f"{name} step {step}"] = torch.zeros_like(step_map)
        return by_step

    def _special(self, padded: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """Return a mask (B, T) for each special token of the tokenizer, true at its positions."""
        at = torch.arange(padded.shape[1])
        masks: dict[str, Tensor] = {}
        for index, (token, _) in enumerate([*self.frame.before, *self.frame.after]):
            inside = index < len(self.frame.before)
            positions = torch.full_like(lengths, index) if inside else lengths - len(self.frame) + index
            name = self.tokenizer.id_to_token(token) or str(token)
            masks[name] = masks.get(name, torch.zeros_like(padded, dtype=torch.bool)) | (at == positions[:, None])
        return masks

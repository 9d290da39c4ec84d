"""What a model's heads do between words: attention between tokens, merged into attention between words.

Clark et al. 2019, section 4.1: attention to a word is summed over its tokens, attention from a word is the mean over
them; special tokens are left out, so what goes to them goes nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from tokenizers import Tokenizer
from torch import Tensor

from manyheads.analysis.heads import HeadStatistics
from manyheads.core.runtime import ComputeConfig
from manyheads.core.tap import record, tapped
from manyheads.data.batching import pad, token_batches
from manyheads.data.text.windows import Frame
from manyheads.errors import UserError
from manyheads.models.bert_features import BertFeatures
from manyheads.models.recurrence import record_halting

BATCH_TOKENS = 1024  # padded tokens that are read at once


class LoadedModel(Protocol):
    """What is used here of what `manyheads.load` gives."""

    model: Any
    tokenizer: Tokenizer
    path: Any
    compute: ComputeConfig


class Words(NamedTuple):
    """A text as words, and whether a space stands before each."""

    words: Sequence[str]
    spaces: Sequence[bool]


class WordMaps(NamedTuple):
    """Of the text of that number: the maps (L, H, W, W) between its words, on the CPU; which words have tokens."""

    number: int
    maps: Tensor
    seen: list[bool]


class WordReader:
    """A model that reads texts given as words, and tells where its heads looked. An encoder-decoder reads the source.

    room      tokens of a text, the special ones among them; None: any number
    layers    names of what was recorded, one for each step of a layer that runs several times; known after reading
    too_long  texts that the model has no room for, which were passed over
    unseen    words that the tokenizer makes nothing of, in the texts that were read

    Every word is tokenized by itself, with its space where the tokenizer heeds it, so that no token is in two words.
    Raises UserError for a model that cannot read a text, or has no attention.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        tokenizer = getattr(loaded, "tokenizer", None)
        model: Any = loaded.model.bert if isinstance(loaded.model, BertFeatures) else loaded.model
        if not isinstance(tokenizer, Tokenizer):
            raise UserError(f"{loaded.path}: this model reads no text: a treebank needs one that does")
        if not tapped(model):
            raise UserError(f"{loaded.path}: {type(model).__name__} has no attention to look at")
        self.tokenizer, self.model, self.compute = tokenizer, model, loaded.compute
        self.frame = Frame.of(self.tokenizer)
        self._spaced = self.tokenizer.encode("a", add_special_tokens=False).ids != (
            self.tokenizer.encode(" a", add_special_tokens=False).ids
        )
        self._pieces: dict[str, list[int]] = {}
        self.room = getattr(model.config, "max_positions", None)
        self.layers: tuple[str, ...] = ()
        self.too_long = self.unseen = 0

    def pieces(self, text: Words) -> list[list[int]]:
        """The tokens of each word."""
        spelt = [" " * (space and self._spaced) + word for word, space in zip(text.words, text.spaces, strict=True)]
        new = [word for word in dict.fromkeys(spelt) if word not in self._pieces]
        for word, encoding in zip(new, self.tokenizer.encode_batch(new, add_special_tokens=False), strict=True):
            self._pieces[word] = encoding.ids
        return [self._pieces[word] for word in spelt]

    def length(self, text: Words) -> int:
        """In tokens, without the special ones."""
        return sum(map(len, self.pieces(text)))

    def maps(self, texts: Sequence[Words], statistics: HeadStatistics | None = None) -> Iterator[WordMaps]:
        """The maps of every text that the model has room for, not in their order; `statistics` get those of tokens."""
        pieces = [self.pieces(text) for text in texts]
        lengths = [sum(map(len, words)) + len(self.frame) for words in pieces]
        room = self.room or max(lengths, default=0)
        kept = [i for i, length in enumerate(lengths) if len(self.frame) < length <= room]
        self.too_long += sum(length > room for length in lengths)
        self.unseen += sum(not word for i in kept for word in pieces[i])
        sizes = [lengths[i] for i in kept]
        for rows in token_batches(sizes, sizes, max([BATCH_TOKENS, *sizes]), seed=0, epoch=0):
            numbers = [kept[row] for row in rows]
            yield from self._batch(numbers, [pieces[i] for i in numbers], statistics)

    def vectors(self, text: Words) -> Tensor:
        """(W, V), without context: the mean of the embeddings of each word's tokens, in units of their deviation."""
        embedding = getattr(self.model, "source_embedding", None) or self.model.embedding
        weight = embedding.weight.detach().float().cpu()
        means = [weight[ids].mean(0) if ids else weight.new_zeros(weight.shape[1]) for ids in self.pieces(text)]
        return torch.stack(means) / weight.std()

    def _batch(
        self, numbers: Sequence[int], pieces: Sequence[Sequence[Sequence[int]]], statistics: HeadStatistics | None
    ) -> Iterator[WordMaps]:
        texts = [self.frame.around([token for word in words for token in word])[0] for words in pieces]
        padded = torch.from_numpy(pad(texts, _pad_id(self.model)))
        lengths = torch.tensor([len(ids) for ids in texts])
        maps = self._token_maps(padded, lengths)
        if statistics is not None:
            statistics.add(maps, lengths, self._special(padded, lengths))
        self.layers = tuple(maps)
        to = torch.zeros(*padded.shape, max(map(len, pieces)))  # (B, T, W)
        for row, words in zip(to, pieces, strict=True):
            at = len(self.frame.before)
            for number, word in enumerate(words):
                row[at : at + len(word), number] = 1.0
                at += len(word)
        mean = (to / to.sum(1, keepdim=True).clamp(min=1)).transpose(1, 2)  # (B, W, T)
        merged = torch.stack([mean[:, None] @ map @ to[:, None] for map in maps.values()], 1)  # (B, L, H, W, W)
        for number, words, padded_maps in zip(numbers, pieces, merged, strict=True):
            yield WordMaps(number, padded_maps[..., : len(words), : len(words)], [bool(word) for word in words])

    def _token_maps(self, padded: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """By layer and step, (B, H, T, T). A position that has halted looks nowhere, however long the others of the
        batch go on."""
        tokens, model, config = padded.shape[1], self.model, self.model.config
        with torch.inference_mode(), self.compute.autocast(), record_halting(model) as thoughts, record(model) as maps:
            ids, sizes = padded.to(self.compute.device), lengths.to(self.compute.device)
            if hasattr(model, "source_embedding"):
                model.start(ids, sizes, 1)  # reads the source
            else:
                # without the head where there is a way, which may be larger than all the rest
                forward: Any = getattr(model, "hidden", None) or getattr(model, "encode", model)
                forward(ids, sizes)
        steps = getattr(config, "steps", 1)
        by_step = {}
        for name, calls in maps.items():
            halts = next((ponder.steps.cpu() for stack, ponder in thoughts.items() if name.startswith(stack)), None)
            for step, map in enumerate(calls, 1):
                # a text classifier reads its padding as a token more
                shown = map[..., :tokens, :tokens].float().cpu()
                shown = shown if halts is None else shown * (halts >= step)[:, None, :, None]
                by_step[name if steps == 1 else f"{name} step {step}"] = shown
            for step in range(len(calls) + 1, steps + 1 if calls else 0):
                by_step[f"{name} step {step}"] = torch.zeros_like(shown)
        return by_step

    def _special(self, padded: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """Where each of the tokenizer's special tokens stands, (B, T) by name."""
        at = torch.arange(padded.shape[1])
        places: dict[str, Tensor] = {}
        for place, (token, _) in enumerate([*self.frame.before, *self.frame.after]):
            inside = place < len(self.frame.before)
            where = torch.full_like(lengths, place) if inside else lengths - len(self.frame) + place
            name = self.tokenizer.id_to_token(token) or str(token)
            places[name] = places.get(name, torch.zeros_like(padded, dtype=torch.bool)) | (at == where[:, None])
        return places


def _pad_id(model: Any) -> int:
    """Return the id that fills up texts: of an encoder-decoder its source's. 0 if the model has none."""
    candidates = (getattr(model, "source_pad", None), getattr(model.config, "pad", None))
    return next((pad for pad in candidates if pad is not None), 0)

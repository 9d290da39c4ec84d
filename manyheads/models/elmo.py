"""ELMo, word vectors from a bidirectional language model that reads characters (Peters 2018).

    bytes of a word  -> embed -> convolutions of widths 1 to 7, maximum over the word -> highway layers -> project
    words            -> LSTMs with projections, one stack per direction, with a residual connection between the layers
    all layers       -> scale * sum of softmax(weights) * layer

A text is one sequence of bytes, with a space before each word. The model collects the bytes of each word, so it
has a vector for every word. For pretraining, each direction predicts the following word from a list of words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from manyheads.core.config import FieldError, LabelConfig, Labels, Layers, Length, Range, Rate, Size
from manyheads.core.dropout import dropout
from manyheads.core.interface import Model
from manyheads.core.layers import LabelHead
from manyheads.core.masks import padding
from manyheads.core.recurrent import LSTM, read_texts, reverse_texts

# Ids of the published model: 0 is padding after a text, 1 to 256 are the bytes, such as a space, and five marks follow.
SPACE, BEGIN, END, WORD_BEGIN, WORD_END, WORD_PAD, CHARACTERS = 33, 257, 258, 259, 260, 261, 262
META_WORD = 6  # number of bytes of a word on the meta device, which is only used to count FLOPs


@dataclass(frozen=True)
class ElmoConfig(LabelConfig):
    """Sizes and options of ELMo. The defaults are those of the published model.

    head             "none": features of words; "words": states for predicting words, in pretraining; "sequence": logits
                     of the `labels` of a text
    words            number of words of the head "words"
    character_width  width of the embeddings of bytes
    filters          numbers of filters that are 1, 2, 3, ... bytes wide
    highways         number of highway layers
    width            width of a word's vector, and of the projected states of each direction
    hidden           number of units of an LSTM, before the projection
    layers           number of LSTM layers of each direction
    max_characters   maximum number of bytes of a word with its two marks. The end of a longer word is cut
    max_positions    maximum number of bytes of a text; the model itself has no such limit
    dropout          dropout of the inputs of the LSTMs, and before the output
    """

    head: Literal["none", "words", "sequence"] = "none"
    labels: Labels = ()
    words: Annotated[int, Range(0, 10**7)] = 0
    pad: Annotated[int, Range(0, CHARACTERS - 1)] = 0
    character_width: Size = 16
    filters: tuple[Annotated[int, Range(1, 2**16)], ...] = (32, 32, 64, 128, 256, 512, 1024)
    highways: Annotated[int, Range(0, 100)] = 2
    width: Size = 512
    hidden: Size = 4096
    layers: Layers = 2
    max_characters: Annotated[int, Range(3, 1000)] = 50
    max_positions: Length = 10_000
    dropout: Rate = 0.1

    vocab = CHARACTERS

    def __post_init__(self) -> None:
        super().__post_init__()
        if not {"none": True, "words": self.words, "sequence": self.labels}[self.head]:
            raise FieldError("head", f"is {self.head}: expected also {'words' if self.head == 'words' else 'labels'}")
        if self.hidden <= self.width:
            raise FieldError("hidden", f"is {self.hidden}: expected more units than the width, {self.width}")
        if not 1 <= len(self.filters) <= self.max_characters:
            raise FieldError("filters", f"are {len(self.filters)}: expected 1 to {self.max_characters} widths")


class CharacterEncoder(nn.Module):
    """Vectors (N, D) of words from their characters (N, C)."""

    def __init__(self, c: ElmoConfig) -> None:
        super().__init__()
        features = sum(c.filters)
        self.embedding = nn.Embedding(CHARACTERS, c.character_width, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(c.character_width, n, i) for i, n in enumerate(c.filters, 1))
        self.highways = nn.ModuleList(nn.Linear(features, 2 * features) for _ in range(c.highways))
        self.project = nn.Linear(features, c.width)
        for layer in self.highways:
            assert isinstance(layer, nn.Linear)
            nn.init.ones_(layer.bias[features:])  # At first, a layer mostly passes its input on.

    def forward(self, characters: Tensor) -> Tensor:
        x = self.embedding(characters).transpose(1, 2)  # (N, E, C)
        x = torch.cat([convolution(x).amax(-1) for convolution in self.convolutions], -1).relu()
        for layer in self.highways:
            changed, gate = layer(x).chunk(2, -1)
            x = torch.lerp(changed.relu(), x, gate.sigmoid())
        return self.project(x)


class Elmo(Model[ElmoConfig]):
    """Bidirectional language model on characters. Bytes in; features of words, or label logits of a text, out."""

    def __init__(self, config: ElmoConfig) -> None:
        c = config
        super().__init__(c, pad=c.pad, max_positions=c.max_positions, head=c.head, labels=c.labels)
        self.encoder = CharacterEncoder(c)
        self.directions = nn.ModuleList(
            nn.ModuleList(LSTM(c.width, c.hidden, batch_first=True, proj_size=c.width) for _ in range(c.layers))
            for _ in range(2)
        )
        if c.head == "words":
            self.output = nn.Linear(c.width, c.words)
            return
        self.mixture = nn.Parameter(torch.zeros(c.layers + 1))
        self.scale = nn.Parameter(torch.ones(()))
        if c.head == "sequence":
            self.output = LabelHead(2 * c.width, len(c.labels))

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Return the label logits (B, L) of texts, or features of words (B, W, 2 D), for bytes (B, T).

        Logits are those of the mean over the words of a text. In pretraining, the features are the states of the
        highest layers of both directions. The argument `segments` is ignored.

        lengths  number of real bytes of each row, (B,). By default, all bytes are real
        """
        layers, counts = self.states(tokens, lengths)
        if self.config.head == "words":
            return layers[-1]
        mixed: Tensor = self.scale * (torch.stack(layers, -1) @ self.mixture.softmax(0))
        if self.config.head == "none":
            return mixed
        if counts is not None:
            mixed = mixed.masked_fill(padding(counts, mixed.shape[1], mixed.device), 0.0)
        mean = mixed.sum(1) / (mixed.shape[1] if counts is None else counts[:, None])
        return self.output(dropout(mean, self.config.dropout, self.training))

    def states(self, tokens: Tensor, lengths: Tensor | None = None) -> tuple[list[Tensor], Tensor | None]:
        """Return the vectors of the words, twice, and the states of each layer, all (B, W, 2 D), for bytes (B, T).

        In a state, the D numbers of the forward direction precede those of the backward direction. The second result is
        the number of words of each text, (B,); None on the meta device.
        """
        characters, counts = spell(tokens, lengths, self.config.max_characters)
        if counts is None:
            words = self.encoder(characters.flatten(0, 1)).view(*characters.shape[:2], -1)
        else:  # Frequent words occur many times in a batch.
            different, rows = characters.flatten(0, 1).unique(dim=0, return_inverse=True)
            words = nn.functional.embedding(rows.view(characters.shape[:2]), self.encoder(different))
        layers = [[words], [words]]
        for backward, (found, stack) in enumerate(zip(layers, self.directions, strict=True)):
            assert isinstance(stack, nn.ModuleList)
            x = reverse_texts(words, counts) if backward else words
            for index, layer in enumerate(stack):
                assert isinstance(layer, nn.RNNBase)
                y = read_texts(layer, dropout(x, self.config.dropout, self.training), counts)[0]
                x = y + x if index else y
                found.append(reverse_texts(x, counts) if backward else x)
        return [torch.cat(pair, -1) for pair in zip(*layers, strict=True)], counts


def spell(tokens: Tensor, lengths: Tensor | None, width: int) -> tuple[Tensor, Tensor | None]:
    """Return the characters of each word, (B, W, width), and the number of words of each text, for bytes (B, T).

    A word begins at each space and at the marks of the begin and the end of a text. Its characters are a mark, its
    bytes, another mark and padding. Words after the end of a text consist of zeros.

    lengths  number of real bytes of each text, (B,). By default, all bytes are real
    """
    batch, count = tokens.shape
    if tokens.is_meta:
        return tokens.new_zeros(batch, -(-count // META_WORD), width), None
    at = torch.arange(count, device=tokens.device).expand(tokens.shape)
    real = (
        torch.ones_like(tokens, dtype=torch.bool)
        if lengths is None
        else ~padding(lengths, count, tokens.device)[..., 0]
    )
    begins = real & ((tokens == SPACE) | (tokens == BEGIN) | (tokens == END) | (at == 0))
    word, counts = (begins.cumsum(1) - 1).clamp(min=0), begins.sum(1)
    first = at.where(begins, 0).cummax(1).values
    # index of a byte in its word; the space becomes the first mark
    place = at - first + (tokens.gather(1, first) != SPACE)
    kept = real & (place < width - 1)
    ends = torch.zeros_like(word).scatter_reduce(1, word, (place + 1).where(kept, 0), "amax")  # after the last byte
    words = int(counts.max())
    characters = tokens.new_full((batch, words * width + 1), WORD_PAD)
    characters.scatter_(1, (word * width + place).where(kept, words * width), tokens)
    characters = characters[:, :-1].unflatten(1, (words, width))
    characters[:, :, 0] = WORD_BEGIN
    characters.scatter_(2, ends[:, :words, None], WORD_END)
    return characters.masked_fill(padding(counts, words, tokens.device), 0), counts

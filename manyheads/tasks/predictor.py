"""Base classes of the predictors that `manyheads.load` returns, with device and attention maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor

from manyheads import directory
from manyheads.analysis.contrast import stacks_of
from manyheads.analysis.maps import AttentionMaps, MapOptions, Sides, attention_maps
from manyheads.analysis.maps.sides import Side
from manyheads.analysis.readout import Names, Readout
from manyheads.calls import checked_methods
from manyheads.core.config import Config, TargetKind
from manyheads.core.interface import Encodes, Model, ReadsImages
from manyheads.core.layers import TokenEmbedding
from manyheads.core.runtime import ComputeConfig
from manyheads.errors import UserError
from manyheads.inference import CompiledModel, check, compile_model
from manyheads.models.gpt import GPT
from manyheads.tasks.embedding import Pool, embed_tokens, vectors_of
from manyheads.tasks.encoding import encode, unknown_token
from manyheads.tasks.inputs import Texts, rows_of
from manyheads.tasks.targets import Shares
from manyheads.tasks.tokenized_text import SHORTEN, TokenizedText, tokenized

M = TypeVar("M", bound=Model[Config])


class TrainedModel(Generic[M]):
    """Predictor: a model in eval mode, on its device.

    model, compute  the model as loaded, and the compute settings (device, number format)
    compiled        the model prepared for fast inference on first use, with its compute settings
    reports         names of the reports that an evaluation can give in addition to metrics
    verbs           names of the commands (such as translate) that models of this class support, and of its methods;
                    `tasks/verbs.py` lists all commands
    supported       verbs of this model
    labels          labels that the model distinguishes
    mask            text that stands for a word to predict; empty: the model predicts no such words
    threshold       minimum probability of a predicted label, for a classifier that predicts any number of labels: one
                    number, or a number by label
    reads_pairs     True if the model can read a pair of texts
    takes_pairs     True if a classifier accepts pairs of texts, which it does not if it was trained on single texts
    needs_pairs     True if a classifier was trained on pairs of texts, and cannot classify a single text
    pairs_only      error message that a user sees who gives a single text to a model for pairs of texts
    reads           kind of the inputs: "texts" or "images"
    """

    verbs: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[Literal["texts", "images"]] = "texts"
    reports: tuple[str, ...] = ()
    mask: str = ""
    threshold: float | dict[str, float] | None = None
    pairs_only: ClassVar[str] = ""
    reads_pairs = takes_pairs = needs_pairs = False

    def __init__(self, loaded: directory.Loaded, compute: ComputeConfig) -> None:
        check(compute)
        self.model: M = loaded.model.to(compute.device).eval()
        self.path, self.family, self.compute = loaded.path, loaded.family, compute
        self._compiled: CompiledModel[Any] | None = None
        self._versions: list[tuple[int, int]] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_compiled": None}  # Compiled functions cannot be pickled.

    @property
    def compiled(self) -> CompiledModel[Any]:
        """Return the model prepared for fast inference.

        If the weights have changed, it is prepared again.
        """
        versions = [
            (parameter.data_ptr(), 0 if parameter.is_inference() else parameter._version)
            for parameter in self.model.parameters()
        ]
        if self._compiled is None or versions != self._versions:
            self._compiled, self._versions = compile_model(self.model, self.compute), versions
        return self._compiled

    @property
    def labels(self) -> Sequence[object]:
        return self.model.labels

    @property
    def supported(self) -> tuple[str, ...]:
        """Return the verbs of this model: of `verbs`, without those for which it has no states or no blocks."""
        works = {"embed": isinstance(self.model, Encodes | ReadsImages), "patch": len(stacks_of(self.model)) == 1}
        return tuple(verb for verb in self.verbs if works.get(verb, True))

    def __repr__(self) -> str:
        parameters = sum(p.numel() for p in self.model.parameters())
        labels = ""
        if "classify" in self.verbs or self.reads == "images":
            labels = f"{len(self.labels)} labels, " if self.labels else "no head, "
        return f"{type(self).__name__}({str(self.path)!r}, {self.family}, {labels}{parameters:,} parameters)"

    def _attention_maps(
        self, inputs: Sequence[Tensor | None], sides: Sides | None, title: str, options: MapOptions, **shown: Any
    ) -> AttentionMaps:
        """Return the attention maps for the given model inputs.

        shown  further keyword arguments of the function `attention_maps`, which select what is shown
        """
        inputs = [tensor if tensor is None else tensor.to(self.compute.device) for tensor in inputs]
        with self.compute.autocast():
            return attention_maps(
                self.model, *inputs, options=options, sides=sides, name=str(self.path), title=title, **shown
            )


class ModelWithTokenizer(TrainedModel[M]):
    """Predictor for a model that reads texts.

    done  past participle such as "translated", which completes the error message if the tokenizer is missing
    """

    done: ClassVar = "read"

    def __init__(self, loaded: directory.Loaded, compute: ComputeConfig) -> None:
        if loaded.tokenizer is None:
            raise UserError(f"{loaded.path}: found no tokenizer.json, so text cannot be {self.done}")
        super().__init__(loaded, compute)
        self.tokenizer, self.sentences = loaded.tokenizer, loaded.sentences

    @property
    def _max_tokens(self) -> int | None:
        """Return the maximum number of tokens that the model can read; None means no limit."""
        return self.model.max_positions

    def _model_inputs(self, text: TokenizedText, truncate: bool) -> tuple[list[Tensor], Side]:
        """Return the inputs of a model that reads a single sequence, and the displayed form of the tokens."""
        if self._max_tokens is not None and len(text.ids) > self._max_tokens:
            if not truncate:
                raise UserError(
                    f"the text has {len(text.ids):,} tokens, the model takes {self._max_tokens:,}: {SHORTEN}"
                )
            text = text.part(range(self._max_tokens))
        rows = [torch.tensor([text.ids])]
        if any(text.segments):
            rows += [torch.tensor([len(text.ids)]), torch.tensor([text.segments])]
        if self.model.head_name == "choice":
            # This model reads several answer candidates per text. Add a dimension for them, here of size 1.
            rows = [row[:, None] for row in rows]
        return rows, text.side

    def _text_maps(
        self, text: TokenizedText, title: str, options: MapOptions, *, truncate: bool, stepwise: Sequence[str] = ()
    ) -> AttentionMaps:
        """Return the attention maps of a model that reads a single sequence."""
        rows, side = self._model_inputs(text, truncate)
        return self._attention_maps(rows, {"self": (side, side)}, title, options, stepwise=stepwise)

    def _words(self) -> Names:
        """Return the names of the words that the model predicts: the tokens of its vocabulary, as in a text."""

        unknown = unknown_token(self.tokenizer)

        def index(word: str) -> int:
            encoding = self.tokenizer.encode(word, add_special_tokens=False)
            if len(encoding.ids) != 1 or encoding.tokens[0] == unknown:
                found = " ".join(encoding.tokens) or "none"
                raise UserError(f"the target {word!r} is not one token of the vocabulary: found {found}")
            return encoding.ids[0]

        def name(token: int) -> str:
            return self.tokenizer.decode([token], skip_special_tokens=False) or str(self.tokenizer.id_to_token(token))

        return Names(name, index)

    def _readout(
        self, rows: Sequence[Tensor], side: Side, title: str, *, position: int | None, names: Names,
        select: Callable[[Tensor], Tensor], kind: TargetKind = "classes",
    ) -> Readout:  # fmt: skip
        inputs = tuple(row.to(self.compute.device) for row in rows)
        embedding = next((module for module in self.model.modules() if isinstance(module, TokenEmbedding)), None)
        source = str(self.path)
        return Readout(self.model, inputs, select, names, position, side, source, title, None, kind, embedding)


@checked_methods
class TextPredictor(ModelWithTokenizer[M]):
    """Predictor for a model that reads a whole text, or a pair of texts.

    A model without segment embeddings separates the two texts of a pair by a separator token.
    """

    def __init__(self, loaded: directory.Loaded, compute: ComputeConfig) -> None:
        super().__init__(loaded, compute)
        self.reads_pairs = self.model.reads_pairs

    def attend(
        self,
        text: str,
        pair: str | None = None,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        axis: str | None = None,
        truncate: bool = False,
        calculation: bool = False,
    ) -> AttentionMaps:
        """Return the attention weights of every head in every layer for a text, or for a pair of texts.

        layers, heads  indices of the layers and heads to return, None for all
        calculation    true: also return the queries, keys and values from which the weights are computed
        truncate       true: cut a text that is longer than the model's limit; false: raise UserError for such a text

            >>> maps = bert.attend("the cat sat", layers=[1], heads=[0])
            >>> maps["self"][0].weights.shape[:2]  # (1, heads, queries, keys)
            (1, 1)
        """
        if pair is None and self.pairs_only:
            raise UserError(self.pairs_only)
        if pair is not None and not self.reads_pairs:
            raise UserError(f"{self.path}: this model reads single texts, not pairs")
        title = text if pair is None else f"{text} | {pair}"
        stepwise = ("self",) if isinstance(self.model, GPT) else ()
        options = MapOptions(axis, layers, heads, calculation)
        tokenized = self._tokenized(text, pair, truncate)
        maps = self._text_maps(tokenized, title, options, truncate=truncate, stepwise=stepwise)
        return replace(maps, prediction=self._prediction(text, pair, truncate))

    def _prediction(self, text: str, pair: str | None, truncate: bool) -> Shares:
        """Return the most probable labels of a text, for its attention page. Only a classifier has some."""
        return ()

    def embed(
        self, texts: str | Texts, *, layer: int | None = None, pool: Pool | None = None, prompt: str | None = None,
        truncate: bool = False, as_array: bool = False,
    ) -> Any:  # fmt: skip
        """Return the embedding of every text, `Embedded`: a vector (D,) of unit length, and the number of tokens.

        layer     index of the layer whose output is pooled; None: the last layer, with the final norm
        pool      "mean" or "max" of all tokens, "first" token ([CLS]), or "tokens": the state of each token, (T, D),
                  not scaled. None: the pooling of a directory of sentence-transformers, otherwise "mean"
        prompt    name of a prompt of a directory of sentence-transformers, which precedes every text. None: the
                  default prompt of the directory; "": no prompt
        truncate  true: cut texts that are longer than the model's limit; false: raise UserError for such texts
        as_array  true: return the vectors alone, as an array (N, D), or (D,) for a single text

        A directory of sentence-transformers has its own limit of tokens. Without its module Normalize, and without
        `pool`, vectors do not have unit length. Raises UserError for other modules and other pooling modes.

            >>> cat, dog = (e.vector for e in encoder.embed(["the cat", "the dog"]))
            >>> bool(-1 <= cat @ dog <= 1)  # cosine similarity
            True
        """
        lines, single = rows_of(texts)
        own = self.sentences
        if pool is None and own.fault:
            raise UserError(f"{own.fault}. Choose a pooling of the last states yourself, with pool (--pool)")
        before, limit = own.prompt(prompt), min(filter(None, (self._max_tokens, own.max_tokens)), default=None)
        prompted = [before + text for text in lines] if before else lines
        encoded = encode(own.tokenizer(self.tokenizer), prompted, None, limit, truncate=truncate)
        found = embed_tokens(self, encoded.ids, layer, pool or own.pool, own.normalize or pool is not None)
        return vectors_of(found, single, as_array)

    def _tokenized(self, text: str, pair: str | None, truncate: bool) -> TokenizedText:
        return tokenized(self.tokenizer, text, pair, max_tokens=self._max_tokens, truncate=truncate)

"""Translation as a task: from pairs of sentences to a trained model, and from a model to translations and scores."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from manyheads import directory
from manyheads.core.runtime import Route
from manyheads.data.batching import pad, token_batches
from manyheads.data.parallel import Pairs
from manyheads.data.store import TokenStore
from manyheads.generation import Hypothesis, beam_search, greedy, score
from manyheads.models.transformer import Transformer
from manyheads.tasks.loss import smoothed_cross_entropy
from manyheads.tasks.metrics import Metrics, translation_metrics

DECODING_TOKENS = 4096  # source tokens times beams that are translated at once


@dataclass(frozen=True)
class Batch:
    """Padded sentences: source (B, Ts) with lengths (B,), what the decoder reads and what it should write (B, Tt)."""

    source: Tensor
    source_lengths: Tensor
    read: Tensor
    write: Tensor
    tokens: int  # real target tokens, the end tokens included

    def to(self, device: str) -> Batch:
        source, lengths, read, write = (t.to(device) for t in (self.source, self.source_lengths, self.read, self.write))
        return Batch(source, lengths, read, write, self.tokens)


@dataclass(frozen=True)
class Corpus:
    """Tokenised pairs, every sentence with its end token, of which `limit` tokens are read (the end among them)."""

    sources: TokenStore
    targets: TokenStore
    limit: int

    def checked(self, pairs: Pairs, *, truncate: bool) -> Corpus:
        """Raises ValueError where a sentence is longer than the limit, unless it may be cut."""
        for side, store in enumerate((self.sources, self.targets)):
            over = np.flatnonzero(store.lengths > self.limit)
            if len(over):
                name = pairs.files[min(side, len(pairs.files) - 1)] if pairs.files else "the corpus"
                told = f"{name}: {len(over):,} of {len(store):,} sentences are longer than {self.limit} tokens"
                if not truncate:
                    raise ValueError(
                        f"{told}, the first is sentence {over[0] + 1:,} with {store.lengths[over[0]]:,}: raise "
                        "max_length, remove them, or cut them with truncate=true"
                    )
                print(f"{told} and are cut", file=sys.stderr)
        return self

    def lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens that are read of each source and of each target."""
        return self.sources.lengths.clip(max=self.limit), self.targets.lengths.clip(max=self.limit)

    def mean_lengths(self) -> tuple[int, int]:
        source, target = self.lengths()
        return round(float(source.mean())), round(float(target.mean()))

    def batch(self, rows: Sequence[int], model: Transformer) -> Batch:
        c = model.config
        sources = [self._cut(self.sources[int(i)]) for i in rows]
        targets = [self._cut(self.targets[int(i)]) for i in rows]
        return Batch(
            torch.from_numpy(pad(sources, model.source_pad)),
            torch.tensor([len(s) for s in sources]),
            torch.from_numpy(pad([[c.start, *t[:-1]] for t in targets], c.pad)),
            torch.from_numpy(pad(targets, c.pad)),
            sum(map(len, targets)),
        )

    def _cut(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return ids if len(ids) <= self.limit else np.append(ids[: self.limit - 1], ids[-1])


class _Batches(Sequence[Batch]):
    """An epoch's batches, collated when asked for."""

    def __init__(self, rows: list[Any], corpus: Corpus, model: Transformer) -> None:
        self._rows, self._corpus, self._model = rows, corpus, model

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Batch:  # type: ignore[override]  # no slices
        return self._corpus.batch(self._rows[index], self._model)


class TranslationTask:
    """What the training loop trains: the smoothed cross-entropy of the target given the source.

    batch_tokens  padded tokens of a micro-batch, on the source and on the target side each
    smoothing     of the labels; the validation's loss is unsmoothed
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        target_tokenizer: Tokenizer | None,
        train: Corpus,
        validation: Corpus,
        *,
        route: Route,
        batch_tokens: int,
        smoothing: float,
        seed: int,
    ) -> None:
        self.model = model.to(route.device)
        self.tokenizer, self.target_tokenizer = tokenizer, target_tokenizer
        self.train, self.validation = train, validation
        self.route, self.batch_tokens, self.smoothing, self.seed = route, batch_tokens, smoothing, seed
        self._hidden = route.compile(self.model.hidden)
        self.saved_as = ""  # the model type, when it is saved

    def batches(self, epoch: int) -> Sequence[Batch]:
        rows = token_batches(*self.train.lengths(), self.batch_tokens, seed=self.seed, epoch=epoch)
        return _Batches(rows, self.train, self.model)

    def loss(self, batch: Batch) -> Tensor:
        return self._loss(batch, self.smoothing)

    def validate(self) -> dict[str, float]:
        """The unsmoothed loss per target token and its exponential."""
        corpus = self.validation
        rows = token_batches(*corpus.lengths(), self.batch_tokens, seed=0, epoch=0)
        total, tokens = 0.0, 0
        for batch in _Batches(rows, corpus, self.model):
            with self.route.autocast():
                total += float(self._loss(batch, 0.0))
            tokens += batch.tokens
        loss = torch.tensor(total / tokens)
        return {"loss": float(loss), "perplexity": float(loss.exp())}

    def save(self, out: Path) -> None:
        self.saved_as = directory.save(out, self.model, self.tokenizer, self.target_tokenizer)

    def _loss(self, batch: Batch, smoothing: float) -> Tensor:
        batch = batch.to(self.route.device)
        hidden = self._hidden(batch.source, batch.source_lengths, batch.read)  # (B, Tt, D)
        return smoothed_cross_entropy(
            hidden.flatten(0, 1), self.model.output_weight, self.model.output_bias, batch.write.flatten(),
            smoothing=smoothing, pad=self.model.config.pad,
        )  # fmt: skip


@dataclass(frozen=True)
class Translation:
    """A translated line. `score` ranks: the log-probability over the length penalty; `log_probability` is natural."""

    text: str
    score: float
    log_probability: float

    def __str__(self) -> str:
        return self.text


class Translator:
    """A trained encoder-decoder with its tokenizers: what `manyheads.load` gives for a translation model."""

    def __init__(self, loaded: directory.Loaded, route: Route) -> None:
        if loaded.tokenizer is None or loaded.target_tokenizer is None:
            raise ValueError(f"{loaded.path} has no tokenizer.json: text cannot be translated without one")
        self.model = loaded.model.to(route.device).eval()
        self.tokenizer, self.target_tokenizer = loaded.tokenizer, loaded.target_tokenizer
        self.path, self.family, self.route = loaded.path, loaded.family, route

    def __repr__(self) -> str:
        parameters = sum(p.numel() for p in self.model.parameters())
        return f"Translator({str(self.path)!r}, {self.family}, {parameters:,} parameters)"

    @overload
    def translate(self, texts: str, *, beam: int = 4, alpha: float = 0.6, truncate: bool = False) -> str: ...
    @overload
    def translate(
        self, texts: list[str], *, beam: int = 4, alpha: float = 0.6, truncate: bool = False
    ) -> list[str]: ...
    def translate(
        self, texts: str | list[str], *, beam: int = 4, alpha: float = 0.6, truncate: bool = False
    ) -> str | list[str]:
        """The best translation of every text, in their order; a blank text stays blank.

        beam      hypotheses followed at once; 1 is greedy
        alpha     of the length penalty ((5 + length) / 6)^alpha (Wu et al. 2016)
        truncate  cut texts that are longer than the model takes, instead of raising a ValueError
        """
        lines = [texts] if isinstance(texts, str) else texts
        best = [found[0].text for found in self.nbest(lines, 1, beam, alpha, truncate=truncate)]
        return best[0] if isinstance(texts, str) else best

    def nbest(
        self, texts: Sequence[str], count: int, beam: int = 4, alpha: float = 0.6, *, truncate: bool = False
    ) -> list[list[Translation]]:
        """The `count` best translations of every text, best first, with their scores."""
        if count > beam:
            raise ValueError(f"{count} translations need a beam of at least {count}, got {beam}")
        sources = self._encode(texts, truncate)
        found: list[list[Translation]] = [[Translation("", 0.0, 0.0)] for _ in texts]
        c = self.model.config
        for rows in self._batches(sources, beam):
            source, lengths = self._pad([sources[i] for i in rows])
            limits = (lengths + 50).clamp(max=c.max_positions - 1)  # Vaswani 2017, section 6.1
            with torch.inference_mode(), self.route.autocast():
                cache = self.model.start(source, lengths, int(limits.max()) + 1)
                asked: dict[str, Any] = {"start": c.start, "end": c.end, "limits": limits, "suppress": self._never}
                if beam == 1:
                    hypotheses = [[h] for h in greedy(self.model.step, cache, **asked, alpha=alpha)]
                else:
                    hypotheses = beam_search(self.model.step, cache, **asked, beam=beam, alpha=alpha, nbest=count)
            for row, several in zip(rows, hypotheses, strict=True):
                found[row] = [self._translation(h) for h in several]
        return found

    def score(self, sources: Sequence[str], targets: Sequence[str], alpha: float = 0.6) -> list[Translation]:
        """How probable the model finds given translations; the text is the one given."""
        if len(sources) != len(targets):
            raise ValueError(f"{len(sources):,} sources but {len(targets):,} targets: they must be aligned")
        c = self.model.config
        encoded = self._encode(sources, truncate=False)
        wanted = [e.ids[:-1] for e in self.target_tokenizer.encode_batch(list(targets))]
        for number, (source, ids) in enumerate(zip(encoded, wanted, strict=True), 1):
            if ids and not source:
                raise ValueError(f"source {number} is blank, but its target is not: there is nothing to score")
            if len(ids) >= c.max_positions:
                raise ValueError(f"target {number} has {len(ids)} tokens, the model takes {c.max_positions - 1}")
        found = [Translation(text, 0.0, 0.0) for text in targets]
        for rows in self._batches(encoded, 1):
            padded, lengths = self._pad([encoded[i] for i in rows])
            chosen = [wanted[i] for i in rows]
            with torch.inference_mode(), self.route.autocast():
                cache = self.model.start(padded, lengths, max(map(len, chosen)) + 1)
                scored = score(
                    self.model.step, cache, chosen, start=c.start, end=c.end, suppress=self._never, alpha=alpha
                )
            for row, h in zip(rows, scored, strict=True):
                found[row] = Translation(targets[row], h.score, h.log_probability)
        return found

    def evaluate(
        self, pairs: Pairs, language: str, *, beam: int = 4, alpha: float = 0.6, truncate: bool = False
    ) -> Metrics:
        """Translate the sources and score against the targets; `language` is the target's."""
        translations = self.translate(pairs.sources, beam=beam, alpha=alpha, truncate=truncate)
        return translation_metrics(translations, pairs.targets, language)

    @property
    def _never(self) -> list[int]:
        c = self.model.config
        return [i for i in {c.pad, c.start} if i != c.end]

    def _encode(self, texts: Sequence[str], truncate: bool) -> list[list[int]]:
        """Ids with the end token; blank texts give none."""
        room = self.model.config.max_positions
        encoded = []
        for number, (text, encoding) in enumerate(zip(texts, self.tokenizer.encode_batch(list(texts)), strict=True), 1):
            ids = encoding.ids if text.strip() else []
            if len(ids) > room:
                if not truncate:
                    raise ValueError(
                        f"text {number} has {len(ids)} tokens, the model takes {room}: split it, or ask to truncate"
                    )
                ids = [*ids[: room - 1], ids[-1]]
            encoded.append(ids)
        return encoded

    def _batches(self, encoded: Sequence[Sequence[int]], beam: int) -> Iterator[list[int]]:
        """Rows of like length, as many as fit the token budget; blank ones are left out."""
        rows = sorted((i for i, ids in enumerate(encoded) if ids), key=lambda i: len(encoded[i]))
        batch: list[int] = []
        for row in rows:
            if batch and (len(batch) + 1) * len(encoded[row]) * beam > DECODING_TOKENS:
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch

    def _pad(self, encoded: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        source = torch.from_numpy(pad(encoded, self.model.source_pad)).to(self.route.device)
        return source, torch.tensor([len(ids) for ids in encoded], device=self.route.device)

    def _translation(self, hypothesis: Hypothesis) -> Translation:
        text = self.target_tokenizer.decode(hypothesis.tokens, skip_special_tokens=True)
        return Translation(text, hypothesis.score, hypothesis.log_probability)

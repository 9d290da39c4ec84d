"""From a trained encoder-decoder to translations and their scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from manyheads import directory
from manyheads.analysis.maps import AttentionMaps
from manyheads.core.runtime import Route
from manyheads.data.batching import pad
from manyheads.data.corpora import ParallelSource
from manyheads.data.embedded.phrases import cldr_pairs
from manyheads.data.parallel import Pairs, read_parallel
from manyheads.data.splits import check_text
from manyheads.files import fingerprint
from manyheads.generation import Hypothesis, beam_search, greedy, score
from manyheads.tasks.attending import translation_maps
from manyheads.tasks.digits.task import algorithmic_outcome, recorded_tests
from manyheads.tasks.evaluation import Outcome, record_of, same_test, told
from manyheads.tasks.translation.metrics import paired_bootstrap, sentence_chrf, translation_metrics

DECODING_TOKENS = 4096  # source tokens times beams that are translated at once


class Held(NamedTuple):
    """Test data, their languages, and how the run decodes."""

    pairs: Pairs
    source: str
    target: str
    beam: int
    alpha: float
    truncate: bool


def held_data(model: Path, data: str | None, skip_bad_lines: bool = False) -> Held:
    """What a run is tested on, as its result.json tells; or `data`, a corpus as training takes it, or a directory
    with a test file. Raises ValueError for a model that was not trained here, unless `data` is "a.en,b.de"."""
    known = record_of(model)
    trained_on = known.get("data", {})
    decoding = known.get("decoding", {})
    source, target = trained_on.get("source"), trained_on.get("target")
    if source is None and data and "," in data:
        source, target = (Path(file).suffix.removeprefix(".") for file in data.split(",", 1))
    if not (source and target):
        raise ValueError(
            f"{model}: no result.json there tells two languages (it lacks one, or was trained on other data than "
            "translations): name the test files as --data FILE.en,FILE.de"
        )
    if data is not None:
        found = ParallelSource(source=source, target=target).test_in(data)
        pairs = told(read_parallel(found, source, target, skip_bad_lines=skip_bad_lines))
    elif cldr := trained_on.get("cldr"):
        pairs = cldr_pairs(source, target, seed=cldr["seed"], size=cldr["size"]).known["test"]
    elif trained_on.get("test"):
        pairs = read_parallel(trained_on["test"][0], source, target)
        same_test(
            trained_on["test"][0], trained_on["fingerprints"]["test"], fingerprint([*pairs.sources, *pairs.targets])
        )
    else:
        raise ValueError(f"{model} was trained without test data: name some with --data")
    beam, alpha = decoding.get("beam", 4), decoding.get("alpha", 0.6)
    return Held(pairs, source, target, beam, alpha, decoding.get("truncate", False))


class TranslationOutcome(Outcome):
    """Two systems differ by what the whole test set scores, not by the mean of its sentences."""

    unit = "chrF"

    def bootstrap(self, other: Outcome) -> dict[str, Any]:
        return paired_bootstrap(self.outputs, other.outputs, self.references)


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
            with torch.inference_mode(), self.route.computing():
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
        for number, text in enumerate(targets, 1):
            check_text(text, f"target {number}")
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
            with torch.inference_mode(), self.route.computing():
                cache = self.model.start(padded, lengths, max(map(len, chosen)) + 1)
                scored = score(
                    self.model.step, cache, chosen, start=c.start, end=c.end, suppress=self._never, alpha=alpha
                )
            for row, h in zip(rows, scored, strict=True):
                found[row] = Translation(targets[row], h.score, h.log_probability)
        return found

    def attend(
        self,
        text: str,
        target: str | None = None,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        axis: str | None = None,
        truncate: bool = False,
    ) -> AttentionMaps:
        """Where every head of every layer looks while the model translates a text.

        target         what it writes; None: its own translation, the best of a beam of 4
        layers, heads  their numbers, None for all
        axis           "encoder", "decoder" or "cross"; None: all of them
        truncate       cut texts that are longer than the model takes, instead of raising a ValueError
        """
        written = self.translate(text, truncate=truncate) if target is None else target
        return translation_maps(
            self, self.target_tokenizer, text, written, truncate=truncate, cut=truncate or target is None,
            layers=layers, heads=heads, axis=axis,
        )  # fmt: skip

    def evaluate(
        self, pairs: Pairs, language: str, *, beam: int = 4, alpha: float = 0.6, truncate: bool = False
    ) -> TranslationOutcome:
        """Translate the sources and score against the targets; `language` is the target's."""
        outputs = self.translate(pairs.sources, beam=beam, alpha=alpha, truncate=truncate)
        metrics = translation_metrics(outputs, pairs.targets, language)
        return TranslationOutcome(pairs.sources, outputs, pairs.targets, sentence_chrf(outputs, pairs.targets), metrics)

    def outcome(self, data: str | None = None, *, skip_bad_lines: bool = False) -> Outcome:
        """On the run's test data, or on `data`, decoded as the run's recipe says; a run on digits by its own scores."""
        if data is None and (tests := recorded_tests(self.path)) is not None:
            return algorithmic_outcome(self.model, self.tokenizer, tests, self.route)
        test = held_data(self.path, data, skip_bad_lines)
        return self.evaluate(test.pairs, test.target, beam=test.beam, alpha=test.alpha, truncate=test.truncate)

    @property
    def _never(self) -> list[int]:
        c = self.model.config
        return [i for i in {c.pad, c.start} if i != c.end]

    def _encode(self, texts: Sequence[str], truncate: bool) -> list[list[int]]:
        """Ids with the end token; blank texts give none."""
        for number, text in enumerate(texts, 1):
            check_text(text, f"text {number}")
        room = self.model.config.max_positions
        encoded = []
        for number, (text, encoding) in enumerate(zip(texts, self.tokenizer.encode_batch(list(texts)), strict=True), 1):
            ids = encoding.ids if text.strip() else []
            if len(ids) > room:
                if not truncate:
                    raise ValueError(
                        f"text {number} has {len(ids)} tokens, the model takes {room}: split it, or "
                        "have it cut with truncate (--truncate)"
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

"""From a trained encoder-decoder to translations and their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, overload

import torch
from torch import Tensor

from manyheads import directory
from manyheads.analysis.lens import Lens
from manyheads.analysis.maps import AttentionMaps, MapOptions
from manyheads.analysis.maps.sides import SPECIAL, Side
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.parallel import Pairs
from manyheads.data.sources.corpora import ParallelSource
from manyheads.data.text.text_faults import ItemError, beginning, check_text, check_texts
from manyheads.errors import UserError
from manyheads.generation import Hypothesis, score
from manyheads.tasks.evaluation import Outcome, record_of, scored_data
from manyheads.tasks.predictor import ModelWithTokenizer
from manyheads.tasks.tokenized_text import SHORTEN, TokenizedText, side_of, tokenized
from manyheads.tasks.translation import MOST_BEAMS
from manyheads.tasks.translation.decoding import (
    DECODING_TOKENS,
    MOST_POSITIONS,
    decode,
    max_target_length,
    never_written,
    pad_sources,
    source_batches,
)
from manyheads.tasks.translation.metrics import paired_bootstrap, sentence_chrf, translation_metrics
from manyheads.training.distributed_map import distributed_map

LOGITS = 2**26  # that are scored at once, or those of one pair
SPLIT = "split it"
CUT = ", or have it cut with truncate (--truncate)"


class TranslationOutcome(Outcome):
    """Two systems differ by what the whole test set scores, not by the mean of its sentences."""

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


class Translator(ModelWithTokenizer):
    """A trained encoder-decoder with its tokenizers: what `manyheads.load` gives for a translation model."""

    verbs: ClassVar = ("translate", "attend", "lens", "evaluate")
    done: ClassVar = "translated"

    def __init__(self, loaded: directory.Loaded, compute: ComputeConfig) -> None:
        super().__init__(loaded, compute)
        if loaded.target_tokenizer is None:
            raise UserError(f"{loaded.path} has no target_tokenizer.json: text cannot be translated without one")
        self.target_tokenizer = loaded.target_tokenizer

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

        beam      hypotheses followed at once, at most 1024; 1 is greedy
        alpha     of the length penalty ((5 + length) / 6)^alpha (Wu et al. 2016), from 0 to 10
        truncate  cut texts that are longer than the model takes, instead of raising a UserError
        """
        lines = [texts] if isinstance(texts, str) else texts
        best = [translations[0].text for translations in self.nbest(lines, 1, beam, alpha, truncate=truncate)]
        return best[0] if isinstance(texts, str) else best

    def nbest(
        self, texts: Sequence[str], count: int, beam: int = 4, alpha: float = 0.6, *, truncate: bool = False
    ) -> list[list[Translation]]:
        """The `count` best translations of every text, best first, with their scores."""
        if not 1 <= beam <= MOST_BEAMS:
            raise UserError(f"beam is {beam}: expected 1 to {MOST_BEAMS}")
        if not 1 <= count <= beam:
            raise UserError(f"{count} translations need a beam of at least {max(count, 1)}, got {beam}")
        sources = self._encode(texts, truncate, SPLIT + CUT)
        for index, ids in enumerate(sources):
            if ids and beam > 1 and beam * (longest := max_target_length(self.model, len(ids)) + 1) > MOST_POSITIONS:
                raise ItemError(
                    index, f"may become {longest:,} tokens, too many for {beam:,} beams at once: take a beam of at "
                    f"most {max(1, MOST_POSITIONS // longest)}"
                )  # fmt: skip
        model, compute = self.compiled
        hypotheses = decode(model, compute, sources, beam=beam, alpha=alpha, nbest=count)
        blank = [Translation("", 0.0, 0.0)]
        return [[self._translation(h) for h in ranked] or blank for ranked in hypotheses]

    def score(self, sources: Sequence[str], targets: Sequence[str], alpha: float = 0.6) -> list[Translation]:
        """How probable the model finds given translations; the text is the one given."""
        if len(sources) != len(targets):
            raise UserError(f"{len(sources):,} sources but {len(targets):,} targets: they must be aligned")
        c = self.model.config
        for number, text in enumerate(targets, 1):
            check_text(text, f"target {number}", c.max_positions)
        encoded = self._encode(sources)
        wanted = [e.ids[:-1] for e in self.target_tokenizer.encode_batch(list(targets))]
        for number, (source, ids) in enumerate(zip(encoded, wanted, strict=True), 1):
            if ids and not source:
                raise UserError(f"source {number} is blank, but its target is not: there is nothing to score")
            if len(ids) >= c.max_positions:
                raise UserError(f"target {number} has {len(ids)} tokens, the model takes {c.max_positions - 1}")
        translations = [Translation(text, 0.0, 0.0) for text in targets]
        model, compute = self.compiled

        def scored(rows: list[int]) -> list[Hypothesis]:
            padded, lengths = pad_sources(model, [encoded[i] for i in rows], self.compute)
            chosen = [wanted[i] for i in rows]
            with torch.inference_mode(), compute.autocast():
                cache = model.start(padded, lengths, max(map(len, chosen)) + 1)
                suppress = never_written(model)
                return score(model.step, cache, chosen, start=c.start, end=c.end, suppress=suppress, alpha=alpha)

        longer = [max(pair, key=len) for pair in zip(encoded, wanted, strict=True)]
        tokens = min(DECODING_TOKENS, LOGITS // self.target_tokenizer.get_vocab_size())
        batches = [*source_batches(model, longer, 1, tokens)]
        for rows, results in zip(batches, distributed_map(batches, scored), strict=True):
            for row, h in zip(rows, results, strict=True):
                translations[row] = Translation(targets[row], h.score, h.log_probability)
        return translations

    def attend(
        self,
        text: str,
        target: str | None = None,
        *,
        layers: Sequence[int] | None = None,
        heads: Sequence[int] | None = None,
        axis: str | None = None,
        truncate: bool = False,
        calculation: bool = False,
    ) -> AttentionMaps:
        """Where every head of every layer looks while the model translates a text.

        A query of the decoder is the token that is being written there, a key what had been written before.

        target         what it writes; None: its own translation, the best of a beam of 4
        layers, heads  their numbers, None for all
        axis           "encoder", "decoder" or "cross"; None: all of them
        calculation    also keep the queries, keys and values that the maps are computed from, for a page to show
        truncate       cut texts that are longer than the model takes, instead of raising a UserError
        """
        source, written, title = self._read(text, target, truncate)
        c = self.model.config
        start = self.target_tokenizer.id_to_token(c.start) or "[start]"
        before = Side(
            (start if c.start != c.pad else "[start]", *written.side.tokens[:-1]), (SPECIAL, *written.side.words[:-1])
        )
        sides = {
            "encoder": (source.side, source.side), "decoder": (written.side, before),
            "cross": (written.side, source.side),
        }  # fmt: skip
        options = MapOptions(axis, layers, heads, calculation)
        return self._maps(self._inputs(source, written), sides, title, options, stepwise=("decoder", "cross"))

    def lens(self, text: str, target: str | None = None, *, top: int = 5, truncate: bool = False) -> Lens:
        """What each layer of the decoder would write in place of each token of the target: the logit lens.

        target    what it writes; None: its own translation, the best of a beam of 4
        top       so many tokens (at most 1000), likeliest first
        truncate  cut texts that are longer than the model takes, instead of raising a UserError
        """
        source, written, title = self._read(text, target, truncate)
        return self._lens(
            "decoder", self.model.project, self._inputs(source, written), written.side.tokens, title, top=top,
            tokenizer=self.target_tokenizer,
        )  # fmt: skip

    def _read(self, text: str, target: str | None, truncate: bool) -> tuple[TokenizedText, TokenizedText, str]:
        """A text and what is written of it, or its own translation, as `attend` takes them, and both as a title."""
        room = self.model.config.max_positions
        source = tokenized(self.tokenizer, text, room=room, truncate=truncate)
        cut = truncate or target is None  # its own translation is shown as far as the model goes
        target = self.translate(text, truncate=truncate) if target is None else target
        check_text(target, "the target", None if cut else room, SHORTEN)
        encoding = self.target_tokenizer.encode(beginning(target, room) if cut else target)  # may be empty
        written = TokenizedText(encoding.ids, encoding.type_ids, side_of(encoding, (target,)))
        if cut:
            written = written.part(range(len(written.ids))[:room])
        for name, one in (("source", source), ("target", written)):
            if len(one.ids) > room:
                raise UserError(f"the {name} has {len(one.ids):,} tokens, the model takes {room:,}: {SHORTEN}")
        return source, written, f"{text} → {target}"

    def _inputs(self, source: TokenizedText, written: TokenizedText) -> list[Tensor | None]:
        """The target is what stands before each token that is written."""
        before = [self.model.config.start, *written.ids[:-1]]
        return [torch.tensor([source.ids]), None, torch.tensor([before])]

    def evaluate(
        self, pairs: Pairs, language: str, *, beam: int = 4, alpha: float = 0.6, truncate: bool = False
    ) -> TranslationOutcome:
        """Translate the sources and score against the targets; `language` is the target's."""
        sources, targets = list(pairs.sources), list(pairs.targets)
        outputs = self.translate(sources, beam=beam, alpha=alpha, truncate=truncate)
        metrics = translation_metrics(outputs, targets, language)
        quality = sentence_chrf(outputs, targets)
        return TranslationOutcome(sources, outputs, targets, quality, metrics, unit="chrF")

    def outcome(self, data: str | None = None, *, skip_bad_lines: bool = False) -> Outcome:
        """On the run's test data, or on `data`, decoded as the run's recipe says."""
        record = record_of(self.path)
        languages = _languages(self.path, record, data)
        pairs = scored_data(
            self.path, data, ParallelSource(source=languages[0], target=languages[1]), skip_bad_lines=skip_bad_lines
        )
        decoding = {"beam": 4, "alpha": 0.6, "truncate": False, **record.get("decoding", {})}
        return self.evaluate(pairs, languages[1], **decoding)

    @property
    def languages(self) -> tuple[str, str] | None:
        """Of the source and the target, where the record of the run tells them."""
        data = record_of(self.path).get("data", {})
        source, target = data.get("source"), data.get("target")
        return (source, target) if isinstance(source, str) and isinstance(target, str) and source and target else None

    def _encode(self, texts: Sequence[str], truncate: bool = False, hint: str = SPLIT) -> list[list[int]]:
        """Ids with the end token; blank texts give none."""
        room = self.model.config.max_positions
        texts = [beginning(text, room) for text in texts] if truncate else list(texts)
        check_texts(texts, room, hint)
        encoded = []
        for index, (text, encoding) in enumerate(zip(texts, self.tokenizer.encode_batch(texts), strict=True)):
            ids = encoding.ids if text.strip() else []
            if len(ids) > room:
                if not truncate:
                    raise ItemError(index, f"has {len(ids)} tokens, the model takes {room}: {hint}")
                ids = [*ids[: room - 1], ids[-1]]
            encoded.append(ids)
        return encoded

    def _translation(self, hypothesis: Hypothesis) -> Translation:
        text = self.target_tokenizer.decode(hypothesis.tokens, skip_special_tokens=True)
        return Translation(text, hypothesis.score, hypothesis.log_probability)


def _languages(model: Path, record: Mapping[str, Any], data: str | None) -> tuple[str, str]:
    """Of the source and the target: those of the run, or the endings of two files."""
    source, target = (record.get("data", {}).get(side) for side in ("source", "target"))
    if source is None and data and "," in data:
        source, target = (Path(file).suffix.removeprefix(".") for file in data.split(",", 1))
    if not (source and target):
        raise UserError(
            f"{model}: no result.json there tells two languages (it lacks one, or was trained on other data than "
            "translations): name the test files as --data FILE.en,FILE.de"
        )
    return source, target

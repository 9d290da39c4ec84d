"""Predictor for translation with an encoder-decoder: beam search, scoring, attention maps and evaluation."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Unpack, overload

import torch
from torch import Tensor

from manyheads import directory
from manyheads.analysis.lens import Lens, Tuned
from manyheads.analysis.maps import AttentionMaps, MapOptions
from manyheads.analysis.maps.sides import SPECIAL, Side
from manyheads.calls import checked_methods
from manyheads.core.runtime import ComputeConfig
from manyheads.data.text.text_faults import ItemError, beginning, check_text, check_texts
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.generation import Hypothesis, score
from manyheads.models.encoder_decoder import TranslationModel
from manyheads.tasks.encoding import unknown_token
from manyheads.tasks.evaluation import EvaluationResult, record_of, scored_data
from manyheads.tasks.inputs import Texts, equal_rows, rows_of
from manyheads.tasks.lens import HasLens
from manyheads.tasks.tokenized_text import SHORTEN, TokenizedText, side_of, tokenized
from manyheads.tasks.translation.alignment import with_copies, word_pairs
from manyheads.tasks.translation.decoding import (
    DECODING_TOKENS,
    MAX_POSITIONS,
    decode,
    max_target_length,
    never_written,
    pad_sources,
    source_batches,
)
from manyheads.tasks.translation.ensemble import Ensemble
from manyheads.tasks.translation.metrics import (
    TranslationEvaluation,
    data_languages,
    sentence_chrf,
    translation_metrics,
)
from manyheads.tasks.translation.options import Options, Translation, decoding_of
from manyheads.training.distributed_map import distributed_map

LOGITS = 2**26  # maximum number of logits computed at once while scoring; a single sentence pair may need more
SPLIT = "split it"
CUT = ", or cut it with truncate (--truncate)"


@checked_methods
class Translator(HasLens[TranslationModel]):
    """Trained encoder-decoder with its tokenizers, as returned by `manyheads.load` for a translation model."""

    verbs: ClassVar = ("translate", "attend", "lens", "evaluate")
    done: ClassVar = "translated"

    def __init__(self, loaded: directory.Loaded, compute: ComputeConfig) -> None:
        super().__init__(loaded, compute)
        if loaded.target_tokenizer is None:
            raise UserError(f"{loaded.path}: found no target_tokenizer.json, so text cannot be translated")
        self.target_tokenizer, self._saved_decoding = loaded.target_tokenizer, loaded.decoding
        self.others: tuple[Translator, ...] = ()  # further models of an ensemble

    def with_ensemble(self, others: Sequence[Translator]) -> Translator:
        """Return a translator that averages the log-probabilities of this model and others with the same vocabulary.

        Attention maps and the logit lens are those of this model alone.

            >>> pair = translator.with_ensemble([translator])
            >>> pair.translate("the cat") == translator.translate("the cat")
            True
        """
        for other in others:
            if not isinstance(other, Translator):
                raise UserError(f"{other!r}: expected a translator, as manyheads.load returns it")
            if other._vocabulary != self._vocabulary:
                raise UserError(
                    f"{other.path}: its vocabulary differs from that of {self.path}: an ensemble needs one vocabulary, "
                    "such as of runs on the same data with another seed or model"
                )
            if other.languages and self.languages and other.languages != self.languages:
                raise UserError(
                    f"{other.path} translates from {' to '.join(other.languages)}, but {self.path} from"
                    f" {' to '.join(self.languages)}: an ensemble needs one pair of languages"
                )
        ensemble = copy.copy(self)
        ensemble.model = copy.copy(self.model)  # The copy shares the weights; only its limit may differ.
        limit = min(translator.model.config.max_positions for translator in (self, *others))
        ensemble.model.config = replace(self.model.config, max_positions=limit)
        ensemble.model.max_positions = limit
        ensemble.others = (*self.others, *others)
        return ensemble

    @property
    def _vocabulary(self) -> tuple[str | int | None, ...]:
        c, tokenizers = self.model.config, (self.tokenizer, self.target_tokenizer)
        return *(tokenizer.to_str() for tokenizer in tokenizers), c.pad, c.start, c.end, self.model.source_pad

    @property
    def compiled(self) -> Any:  # a CompiledModel, or an Ensemble
        own = super().compiled
        return Ensemble([own, *(other.compiled for other in self.others)]) if self.others else own

    @overload
    def translate(self, texts: str, **options: Unpack[Options]) -> str: ...
    @overload
    def translate(self, texts: Texts, **options: Unpack[Options]) -> list[str]: ...
    def translate(self, texts: str | Texts, **options: Unpack[Options]) -> str | list[str]:
        """Return the best translation of every text, in input order. The translation of a blank text is blank.

        options  options of decoding (see `Options`)

            >>> type(translator.translate("the cat"))
            <class 'str'>
            >>> len(translator.translate(["the cat", "the dog"], beam=2))
            2
            >>> translator.translate("the cat", prefix="the dog", min_length=4).startswith("the dog")
            True
        """
        lines, single = rows_of(texts)
        best = [translations[0].text for translations in self.nbest(lines, 1, **options)]
        return best[0] if single else best

    def nbest(self, texts: str | Texts, count: int, **options: Unpack[Options]) -> Any:
        """Return the `count` best translations of every text with their scores, best first.

        The result for a text is a list of `Translation`. See `Options` for the options of decoding.

        >>> ranked = translator.nbest("the cat", count=2, beam=2)
        >>> ranked[0].score >= ranked[1].score
        True
        """
        lines, single = rows_of(texts)
        beam, alpha, wording, sampling = decoding_of(options, count, self.decoding)
        constraints = wording.constraints(self.target_tokenizer)
        sources = self._encode(lines, options.get("truncate", False), SPLIT + CUT)
        for index, ids in enumerate(sources):
            if ids and beam > 1 and beam * (longest := max_target_length(self.model, len(ids)) + 1) > MAX_POSITIONS:
                raise ItemError(
                    index, f"may become {longest:,} tokens long, too many for {beam:,} beams at once: "
                           f"use a beam of at most {max(1, MAX_POSITIONS // longest)}"
                )  # fmt: skip
        hypotheses = decode(
            self.compiled, sources, beam=beam, alpha=alpha, nbest=count, constraints=constraints, sampling=sampling,
            seed=options.get("seed", 0),
        )  # fmt: skip
        blank = [Translation("", 0.0, 0.0)]
        copies = options.get("copy_unknown", False)
        ranked = [
            [Translation(self._text(h.tokens, ids, text, copies), h.score, h.log_probability) for h in found] or blank
            for found, ids, text in zip(hypotheses, sources, lines, strict=True)
        ]
        return ranked[0] if single else ranked

    def score(self, sources: str | Texts, targets: str | Texts, alpha: float = 0.6) -> Any:
        """Return each target text as a `Translation` of its source text, with the model's score and log-probability.

        >>> translator.score("the cat", "the dog").log_probability < 0
        True
        """
        lines, outputs, single = equal_rows(sources, targets, ("source", "target"))
        c = self.model.config
        for number, text in enumerate(outputs, 1):
            check_text(text, f"target {number}", c.max_positions)
        encoded = self._encode(lines)
        target_ids = [e.ids[:-1] for e in self.target_tokenizer.encode_batch(outputs)]
        for number, (source, ids) in enumerate(zip(encoded, target_ids, strict=True), 1):
            if ids and not source:
                raise UserError(f"source {number} is blank, but its target is not: give both or none")
            if len(ids) >= c.max_positions:
                raise UserError(f"target {number} has {len(ids)} tokens, the model takes {c.max_positions - 1}")
        translations = [Translation(text, 0.0, 0.0) for text in outputs]
        model = self.compiled

        def score_rows(rows: list[int]) -> list[Hypothesis]:
            padded, lengths = pad_sources(model, [encoded[i] for i in rows])
            batch_targets = [target_ids[i] for i in rows]
            with torch.inference_mode(), model.compute.autocast():
                cache = model.start(padded, lengths, max(map(len, batch_targets)) + 1)
                suppress = never_written(model)
                return score(model.step, cache, batch_targets, start=c.start, end=c.end, suppress=suppress, alpha=alpha)

        longer = [max(pair, key=len) for pair in zip(encoded, target_ids, strict=True)]
        tokens = min(DECODING_TOKENS, LOGITS // self.target_tokenizer.get_vocab_size())
        batches = [*source_batches(model, longer, 1, tokens)]
        for rows, results in zip(batches, distributed_map(batches, score_rows), strict=True):
            for row, h in zip(rows, results, strict=True):
                translations[row] = Translation(outputs[row], h.score, h.log_probability)
        return translations[0] if single else translations

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
        """Return the attention weights of every head in every layer while the model translates a text.

        In the decoder, a query is the token that is being generated, and the keys are the tokens generated before it.

        target         translation to use. By default, the model's best translation with a beam width of 4
        layers, heads  indices of the layers and heads to return. By default, all are returned
        axis           kind of attention to return: "encoder", "decoder" or "cross". By default, all are returned
        calculation    if True, also return the queries, keys and values from which the weights are computed
        truncate       if True, cut texts that are longer than the model's limit. If False, such texts raise UserError

            >>> maps = translator.attend("the cat", "the dog")
            >>> list(maps)
            ['encoder', 'decoder', 'cross']
            >>> maps["cross"][0].weights.ndim  # (1, heads, queries, keys)
            4
        """
        source, output, title = self._tokenize_pair(text, target, truncate)
        c = self.model.config
        start = self.target_tokenizer.id_to_token(c.start) or "[start]"
        decoder_input = Side(
            (start if c.start != c.pad else "[start]", *output.side.tokens[:-1]), (SPECIAL, *output.side.words[:-1])
        )
        sides = {
            "encoder": (source.side, source.side), "decoder": (output.side, decoder_input),
            "cross": (output.side, source.side),
        }  # fmt: skip
        options = MapOptions(axis, layers, heads, calculation)
        return self._attention_maps(self._inputs(source, output), sides, title, options, stepwise=("decoder", "cross"))

    def alignments(self, texts: str | Texts, targets: str | Texts | None = None, *, layer: int | None = None) -> Any:
        """Return, for every word of each translation, the source word with the largest cross-attention weight.

        The result for a text is a list of pairs (index of the source word, index of the target word). Words are counted
        from 0 and separated by white space. Cross-attention weights are averaged over the heads.

        targets  translations of the texts. By default, the model translates the texts
        layer    index of the decoder layer. By default, the last but one (Garg et al. 2019, section 4.1)

            >>> translator.alignments("the cat", "the dog")[1][1]  # the second pair is that of target word 1
            1
        """
        layers = None if layer is None else [layer]
        sources, single = rows_of(texts)
        given: Any = sources[0] if single else sources
        targets = self.translate(given) if targets is None else targets
        sources, outputs, single = equal_rows(given, targets, ("text", "target"))
        found = []
        for text, target in zip(sources, outputs, strict=True):
            if not (text.strip() and target.strip()):
                found.append(list[tuple[int, int]]())
                continue
            record = self.attend(text, target, layers=layers, axis="cross")["cross"][-2:][0]
            sides = (self.target_tokenizer.encode(target), target), (self.tokenizer.encode(text), text)
            found.append(word_pairs(record.weights[0].mean(0), *sides))
        return found[0] if single else found

    def lens(
        self, text: str, target: str | None = None, *, top: int = 5, truncate: bool = False, tuned: Tuned = None
    ) -> Lens:
        """Return the lens: the tokens that each decoder layer would predict at each position of the target.

        target    translation to use. By default, the model's best translation with a beam width of 4
        top       number of tokens for each layer and position, likeliest first, at most 1000
        truncate  if True, cut texts that are longer than the model's limit. If False, such texts raise UserError
        tuned     tuned lens of this model, or the file to which it was saved. By default, the logit lens

            >>> lens = translator.lens("the cat", "the dog", top=2)
            >>> len(lens.words) == len(lens.layers)
            True
        """
        source, output, title = self._tokenize_pair(text, target, truncate)
        inputs = self._inputs(source, output)
        return self._lens(inputs, output.side.tokens, title, top, tuned, self.target_tokenizer)

    def _tuning_inputs(self, texts: Sequence[str]) -> Iterable[Sequence[Tensor | None]]:
        pairs = (self._tokenize_pair(text, None, True) for text in texts)
        return (self._inputs(source, output) for source, output, _ in pairs)

    def _tokenize_pair(self, text: str, target: str | None, truncate: bool) -> tuple[TokenizedText, TokenizedText, str]:
        """Return the tokenized source and target, and a title that describes both.

        Without a target, the model translates the source.
        """
        limit = self.model.config.max_positions
        source = tokenized(self.tokenizer, text, max_tokens=limit, truncate=truncate)
        # A translation by the model may be longer than the model can read, so cut it instead of raising an error.
        cuts = truncate or target is None
        target = self.translate(text, truncate=truncate) if target is None else target
        check_text(target, "the target", None if cuts else limit, SHORTEN)
        # The user may give an empty text as the target translation.
        encoding = self.target_tokenizer.encode(beginning(target, limit) if cuts else target)
        output = TokenizedText(encoding.ids, encoding.type_ids, side_of(encoding, (target,)))
        if cuts:
            output = output.part(range(len(output.ids))[:limit])
        for name, side_text in (("source", source), ("target", output)):
            if len(side_text.ids) > limit:
                raise UserError(f"the {name} has {len(side_text.ids):,} tokens, the model takes {limit:,}: {SHORTEN}")
        return source, output, f"{text} → {target}"

    def _inputs(self, source: TokenizedText, output: TokenizedText) -> list[Tensor | None]:
        """Return the inputs of the encoder-decoder.

        The decoder input is the target, shifted right behind the start token.
        """
        decoder_input = [self.model.config.start, *output.ids[:-1]]
        return [torch.tensor([source.ids]), None, torch.tensor([decoder_input])]

    def evaluate(
        self, pairs: object = None, language: str | None = None, **options: Unpack[Options]
    ) -> EvaluationResult:
        """Translate the source texts of sentence pairs, and compare the translations with the target texts.

        pairs     `Pairs`, or data that the method `outcome` accepts
        language  target language, required for `Pairs`
        options   options of decoding (see `Options`), for `Pairs` only

            >>> from manyheads.data.readers.parallel import Pairs
            >>> result = translator.evaluate(Pairs(["the cat"], ["the dog"]), "de")
            >>> sorted(result.metrics)
            ['bleu_13a', 'bleu_moses_lc', 'chrf', 'exact_match']
        """
        from manyheads.data.readers.parallel import Pairs

        if language is None or not isinstance(pairs, Pairs):
            if language is not None or options or isinstance(pairs, Pairs):
                raise UserError(
                    "a language and options of decoding need Pairs; other data are evaluated as in training"
                )
            return self.outcome(pairs)
        sources, targets = list(pairs.sources), list(pairs.targets)
        outputs = self.translate(sources, **options)
        metrics = translation_metrics(outputs, targets, language)
        quality = sentence_chrf(outputs, targets)
        return TranslationEvaluation(sources, outputs, targets, quality, metrics, unit="chrF")

    def outcome(self, data: object = None, *, skip_bad_lines: bool = False) -> EvaluationResult:
        """Evaluate the model on the test data of its training run, or on `data`.

        Decoding uses the beam width and length penalty of the run's recipe.
        """
        from manyheads.data.sources.corpora import ParallelSource

        record = record_of(self.path)
        languages = data_languages(self.path, record, data)
        pairs = scored_data(
            self.path, data, ParallelSource(source=languages[0], target=languages[1]), skip_bad_lines=skip_bad_lines
        )
        truncate = record.get("decoding", {}).get("truncate", False)
        return self.evaluate(pairs, languages[1], truncate=truncate)

    @cached_property
    def decoding(self) -> JsonObject:
        """Beam width and length penalty with which the training run was scored; 4 and 0.6 for other models."""
        saved = self._saved_decoding
        # Without the key `alpha`, which only Manyheads writes, `num_beams` is not the beam width of a training run.
        found = {"beam": 4, "alpha": 0.6} | (
            {"beam": saved["num_beams"], "alpha": saved["alpha"]} if "alpha" in saved else {}
        )
        return found | {name: v for name, v in record_of(self.path).get("decoding", {}).items() if name in found}

    @property
    def languages(self) -> tuple[str, str] | None:
        """Source and target language from the record of the training run, or None if the record has no languages."""
        data = record_of(self.path).get("data", {})
        source, target = data.get("source"), data.get("target")
        return (source, target) if isinstance(source, str) and isinstance(target, str) and source and target else None

    def _encode(self, texts: Sequence[str], truncate: bool = False, hint: str = SPLIT) -> list[list[int]]:
        """Return the token ids of each source text with the end token, or an empty list for a blank text."""
        max_tokens = self.model.config.max_positions
        texts = [beginning(text, max_tokens) for text in texts] if truncate else list(texts)
        check_texts(texts, max_tokens, hint)
        encoded = []
        for index, (text, encoding) in enumerate(zip(texts, self.tokenizer.encode_batch(texts), strict=True)):
            ids = encoding.ids if text.strip() else []
            if len(ids) > max_tokens:
                if not truncate:
                    raise ItemError(index, f"has {len(ids)} tokens, the model takes {max_tokens}: {hint}")
                ids = [*ids[: max_tokens - 1], ids[-1]]
            encoded.append(ids)
        return encoded

    def _text(self, tokens: list[int], ids: list[int], source: str, copy_unknown: bool) -> str:
        """Return the text of target tokens, for a source text with its token ids."""
        name = unknown_token(self.target_tokenizer) or ""
        unknown = self.target_tokenizer.token_to_id(name)
        if copy_unknown and unknown is None:
            raise UserError(f"{self.path}: its vocabulary has no unknown word: leave out copy_unknown (--copy-unknown)")
        if not copy_unknown or unknown not in tokens:
            return self.target_tokenizer.decode(tokens, skip_special_tokens=True)
        inputs = [torch.tensor([ids]), None, torch.tensor([[self.model.config.start, *tokens[:-1]]])]
        record = self._attention_maps(inputs, None, source, MapOptions("cross"))["cross"][-2:][0]
        weights, encoding = record.weights[0].mean(0), self.tokenizer.encode(source)
        return with_copies(self.target_tokenizer, tokens, name, weights, encoding, source)

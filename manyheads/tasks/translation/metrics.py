"""Translation metrics: BLEU with its signature, chrF, exact matches, and a significance test for two models."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject
from manyheads.tasks.evaluation import EvaluationResult
from manyheads.training.record import Metrics

if TYPE_CHECKING:
    from sacrebleu.metrics import BLEU, CHRF

TRANSLATION_METRICS = ("bleu_13a", "chrf")  # metrics of texts that a validation may measure, too


def translation_metrics(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Metrics:
    """Return the metrics of translations: BLEU and chrF (`corpus_metrics`), and two more.

    exact_match    fraction of translations that equal their reference, 0 to 1
    bleu_moses_lc  BLEU on lowercased text after Moses punctuation normalization and tokenization, as in the papers on
                   multimodal translation. It is measured only if sacremoses is installed

    language  target language
    """
    from sacrebleu.metrics import BLEU

    if len(hypotheses) != len(references):
        raise UserError(
            f"found {len(hypotheses):,} translations, but {len(references):,} references: expected equal numbers"
        )
    if not references:
        raise UserError("found no test pairs to score: the test data are empty")
    scores: Metrics = {
        **corpus_metrics(hypotheses, references),
        "exact_match": {
            "value": sum(h == r for h, r in zip(hypotheses, references, strict=True)) / len(references),
            "signature": "whole lines, cased",
        },
    }
    try:
        prepared = [prepared_texts(texts, language) for texts in (hypotheses, references)]
    except ImportError:
        return scores
    # force=True suppresses sacreBLEU's warning that the texts are already tokenized.
    moses = _score(BLEU(tokenize="none", force=True), *prepared)
    moses["signature"] += f"|prepared:lowercase, sacremoses {version('sacremoses')} normalize and tokenize ({language})"
    return {**scores, "bleu_moses_lc": moses}


def prepared_texts(texts: Sequence[str], language: str) -> list[str]:
    """Return texts in lower case after Moses punctuation normalization and tokenization, for `bleu_moses_lc`."""
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normalize, tokenize = MosesPunctNormalizer(language).normalize, MosesTokenizer(language).tokenize
    return [" ".join(tokenize(normalize(text.lower()), escape=False)) for text in texts]


def corpus_metrics(hypotheses: Sequence[str], references: Sequence[str]) -> Metrics:
    """Return BLEU and chrF on raw text, 0 to 100, by the names in TRANSLATION_METRICS."""
    from sacrebleu.metrics import BLEU, CHRF

    metrics: dict[str, BLEU | CHRF] = {"bleu_13a": BLEU(tokenize="13a"), "chrf": CHRF()}
    return {name: _score(metric, hypotheses, references) for name, metric in metrics.items()}


def _score(metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> JsonObject:
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return {"value": round(result.score, 4), "signature": str(metric.get_signature())}


def paired_bootstrap(first: Sequence[str], second: Sequence[str], references: Sequence[str]) -> JsonObject:
    """Compare two translation models by a paired bootstrap test with 1,000 resamples of the test set (Koehn 2004)."""
    from sacrebleu.metrics import BLEU, CHRF
    from sacrebleu.significance import PairedTest, Result

    test = PairedTest(
        [("first", list(first)), ("second", list(second))],
        {"BLEU": BLEU(references=[list(references)]), "chrF": CHRF(references=[list(references)])},
        references=None,
        test_type="bs",
        n_samples=1000,
    )
    signatures, scores = test()
    comparison: JsonObject = {}
    for name in ("BLEU", "chrF2"):
        one, two = scores[name]
        assert isinstance(one, Result)
        assert isinstance(two, Result)
        # For equal outputs, p is 1. sacreBLEU would report p = 0.001, because no resample has a larger difference than
        # the observed difference of zero.
        p_value = 1.0 if list(first) == list(second) else float(two.p_value or 0.0)
        comparison[name] = {
            "first": float(one.score), "second": float(two.score), "difference": float(two.score - one.score),
            "p_value": p_value, "confidence_95": [float(one.ci or 0.0), float(two.ci or 0.0)],
            "signature": str(signatures[name]),
        }  # fmt: skip
    return comparison


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """Return the chrF score of each sentence, 0 to 100."""
    from sacrebleu.metrics import CHRF

    chrf = CHRF()
    return [chrf.sentence_score(h, [r]).score for h, r in zip(hypotheses, references, strict=True)]


class TranslationEvaluation(EvaluationResult):
    """Result of a translation model on test data.

    Two results are compared by metrics of the whole corpus, such as BLEU, not by the mean quality of the sentences.
    """

    def bootstrap(self, other: EvaluationResult) -> JsonObject:
        return paired_bootstrap(self.outputs, other.outputs, self.references)


def data_languages(model: Path, record: JsonMapping, data: object) -> tuple[str, str]:
    """Return the source and target language, from the record of the training run or from the names of the test files.

    The file names end with the language, as in `test.en` and `test.de`.
    """
    source, target = (record.get("data", {}).get(side) for side in ("source", "target"))
    if source is None and isinstance(data, str) and "," in data:
        source, target = (Path(file).suffix.removeprefix(".") for file in data.split(",", 1))
    if not (source and target):
        raise UserError(
            f"{model}: found no languages in result.json. "
            "The file is missing, or the model was not trained on translations. "
            "Give the test files as --data FILE.en,FILE.de"
        )
    return source, target

"""How good a translation is: BLEU with its signature, chrF, exact matches, and whether two systems differ."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest, Result

from manyheads.errors import UserError
from manyheads.training.record import Metrics


def translation_metrics(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Metrics:
    """{name: {"value": x, "signature": s}}: bleu_13a and chrf (0 to 100) on raw text, exact_match (0 to 1).

    bleu_moses_lc is added where sacremoses is installed: BLEU of lowercased text after Moses' punctuation
    normalisation and tokenisation, as the multimodal translation papers report it.
    """
    if len(hypotheses) != len(references):
        raise UserError(f"{len(hypotheses):,} translations but {len(references):,} references: they must be aligned")
    if not references:
        raise UserError("there is nothing to score: the test data are empty")
    bleu, chrf = BLEU(tokenize="13a"), CHRF()
    scores: Metrics = {
        "bleu_13a": _score(bleu, hypotheses, references),
        "chrf": _score(chrf, hypotheses, references),
        "exact_match": {
            "value": sum(h == r for h, r in zip(hypotheses, references, strict=True)) / len(references),
            "signature": "whole lines, cased",
        },
    }
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError:
        return scores
    normalize, tokenize = MosesPunctNormalizer(language).normalize, MosesTokenizer(language).tokenize

    def prepared(lines: Sequence[str]) -> list[str]:
        return [" ".join(tokenize(normalize(line.lower()), escape=False)) for line in lines]

    # force: sacreBLEU would warn that the text looks tokenised, which it is
    moses = _score(BLEU(tokenize="none", force=True), prepared(hypotheses), prepared(references))
    moses["signature"] += f"|prepared:lowercase, sacremoses {version('sacremoses')} normalise and tokenise ({language})"
    return {**scores, "bleu_moses_lc": moses}


def _score(metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    result = metric.corpus_score(list(hypotheses), [list(references)])
    return {"value": round(result.score, 4), "signature": str(metric.get_signature())}


def paired_bootstrap(first: Sequence[str], second: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Is the second system better than the first by more than chance (Koehn 2004)? 1,000 resamples of the test set."""
    test = PairedTest(
        [("first", list(first)), ("second", list(second))],
        {"BLEU": BLEU(references=[list(references)]), "chrF": CHRF(references=[list(references)])},
        references=None,
        test_type="bs",
        n_samples=1000,
    )
    signatures, scores = test()
    comparison: dict[str, Any] = {}
    for name in ("BLEU", "chrF2"):
        one, two = scores[name]
        assert isinstance(one, Result)
        assert isinstance(two, Result)
        # sacreBLEU counts differences above the observed one: of two equal systems it would say p = 0.001
        p_value = 1.0 if list(first) == list(second) else float(two.p_value or 0.0)
        comparison[name] = {
            "first": float(one.score), "second": float(two.score), "difference": float(two.score - one.score),
            "p_value": p_value, "confidence_95": [float(one.ci or 0.0), float(two.ci or 0.0)],
            "signature": str(signatures[name]),
        }  # fmt: skip
    return comparison


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """chrF of each sentence, 0 to 100."""
    chrf = CHRF()
    return [chrf.sentence_score(h, [r]).score for h, r in zip(hypotheses, references, strict=True)]

"""Scoring a translator on test data, and two of them against each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from manyheads.data.cldr import cldr_pairs
from manyheads.data.parallel import Pairs, find_splits, read_parallel
from manyheads.data.store import fingerprint
from manyheads.tasks.metrics import Metrics, most_changed, paired_bootstrap, translation_metrics
from manyheads.tasks.translation import Translator


class Held(NamedTuple):
    """Test data, their languages, and how the run decodes."""

    pairs: Pairs
    source: str
    target: str
    beam: int
    alpha: float
    truncate: bool


def held_data(model: Path, data: str | None) -> Held:
    """What a run is tested on, as its result.json tells; or `data`, a corpus as training takes it, or a directory
    with a test file. Raises ValueError for a model that was not trained here, unless `data` is "a.en,b.de"."""
    record = model / "result.json"
    try:
        known: Any = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    except ValueError:
        known = None
    if not isinstance(known, dict):
        raise ValueError(f"{record}: damaged, not the record of a run: delete it and name the test files with --data")
    trained_on = known.get("data", {})
    decoding = known.get("decoding", {})
    source, target = trained_on.get("source"), trained_on.get("target")
    if source is None and data and "," in data:
        source, target = (Path(file).suffix.removeprefix(".") for file in data.split(",", 1))
    if not (source and target):
        raise ValueError(
            f"{model} has no result.json that tells its languages: name the test files as --data FILE.en,FILE.de"
        )
    if data is not None:
        tests = find_splits(data, source, target).test if Path(data).is_dir() else [data]
        if not tests:
            raise ValueError(f"{data}: no test.{source} + test.{target} there; name the corpus itself")
        pairs = read_parallel(tests[0], source, target)
    elif cldr := trained_on.get("cldr"):
        pairs = cldr_pairs(source, target, seed=cldr["seed"], size=cldr["size"]).test
    elif trained_on.get("test"):
        pairs = read_parallel(trained_on["test"][0], source, target)
        if fingerprint([*pairs.sources, *pairs.targets])[:16] != trained_on["fingerprints"]["test"]:
            raise ValueError(
                f"{trained_on['test'][0]}: the test data are not those of the run any more; to score on them as they "
                f"are: --data {trained_on['test'][0]}"
            )
    else:
        raise ValueError(f"{model} was trained without test data: name some with --data")
    beam, alpha = decoding.get("beam", 4), decoding.get("alpha", 0.6)
    return Held(pairs, source, target, beam, alpha, decoding.get("truncate", False))


def evaluate(translator: Translator, data: str | None = None) -> Metrics:
    """Metrics on the run's test data, or on `data`, decoded as the run's recipe says."""
    test = held_data(translator.path, data)
    return translator.evaluate(test.pairs, test.target, beam=test.beam, alpha=test.alpha, truncate=test.truncate)


def compare(first: Translator, second: Translator, data: str | None = None) -> dict[str, Any]:
    """Both on the first one's test data: metrics, a paired bootstrap, the items that changed most."""
    test = held_data(first.path, data)
    own = held_data(second.path, data)
    if own.pairs.sources != test.pairs.sources:
        raise ValueError(f"{first.path} and {second.path} have different test data: name one corpus with --data")
    references = test.pairs.targets
    one, two = (
        translator.translate(test.pairs.sources, beam=settings.beam, alpha=settings.alpha, truncate=settings.truncate)
        for translator, settings in ((first, test), (second, own))
    )
    return {
        "first": {"model": str(first.path), "metrics": translation_metrics(one, references, test.target)},
        "second": {"model": str(second.path), "metrics": translation_metrics(two, references, test.target)},
        "pairs": len(test.pairs),
        "bootstrap": paired_bootstrap(one, two, references),
        "most_changed": most_changed(test.pairs.sources, one, two, references),
    }

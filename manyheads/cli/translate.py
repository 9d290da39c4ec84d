"""The command `manyheads translate`: translate texts."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyheads.cli.lines import answered, one_line, read_lines, stdin
from manyheads.cli.loading import add_precision, add_processes, model_for
from manyheads.cli.output import document
from manyheads.cli.parser import MODEL, Verbs, number, whole
from manyheads.errors import UserError
from manyheads.tasks.translation import MAX_BEAMS

if TYPE_CHECKING:
    from manyheads.tasks.translation.predictor import Translation, Translator


def add(verbs: Verbs) -> None:
    verb = verbs.add(
        "translate",
        _translate,
        "translate texts, from arguments or stdin",
        MODEL,
        as_json=True,
        example='manyheads translate runs/translation "May 3, 2024"',
    )
    verb.add_argument("rest", nargs="*", metavar="TEXT", help="without arguments, read one text per line of stdin")
    verb.add_argument(
        "--beam", type=whole(1, MAX_BEAMS), default=4, metavar="N", help="beam size; 1 is greedy (default: 4)"
    )
    verb.add_argument("--alpha", type=number("a number from 0 to 10", lambda value: 0 <= value <= 10), default=0.6,
                      metavar="A", help="length penalty (default: 0.6)")  # fmt: skip
    verb.add_argument("--nbest", type=whole(1, MAX_BEAMS), metavar="N",
                           help="print the N best translations of each line: line number, score, text")  # fmt: skip
    verb.add_argument("--score-target", metavar="FILE",
                           help="score the lines of FILE as translations; print score and log-probability")  # fmt: skip
    verb.add_argument("--truncate", action="store_true", help="shorten texts that exceed the model's maximum length")
    add_precision(verb)
    add_processes(verb)


def _translate(options: argparse.Namespace) -> None:
    if options.score_target and (options.nbest or options.truncate):
        unread = "--nbest" if options.nbest else "--truncate"
        raise UserError(f"--score-target scores complete texts: leave out {unread}")
    if options.nbest and options.nbest > options.beam:
        raise UserError(
            f"--nbest {options.nbest} exceeds the beam: expected --beam {options.nbest} or more, found {options.beam}"
        )
    targets = list(read_lines(Path(options.score_target))) if options.score_target else None
    translator = model_for("translate", options.model, options.precision)
    if targets is not None:
        return _score(translator, targets, options)
    documents: list[dict[str, Any]] = []

    def translations(texts: list[str]) -> list[list[Translation]]:
        return translator.nbest(texts, options.nbest or 1, options.beam, options.alpha, truncate=options.truncate)

    for line, text, ranked in answered(options.rest, translations):
        if options.json:
            documents.append({"source": text, "translations": [_plain(t) for t in ranked]})
        elif options.nbest:
            for t in ranked:
                print(line, f"{t.score:.4f}", one_line(t.text), sep="\t")
        else:
            print(one_line(ranked[0].text))
    if options.json:
        document(documents)


def _score(translator: Translator, targets: list[str], options: argparse.Namespace) -> None:
    sources = options.rest or [text for chunk in stdin() for text in chunk]
    if len(sources) != len(targets):
        raise UserError(
            f"{options.score_target}: expected {len(sources):,} lines, one per source, found {len(targets):,}"
        )
    scored = translator.score(sources, targets, options.alpha)
    if options.json:
        return document([{"source": s, **_plain(t)} for s, t in zip(sources, scored, strict=True)])
    for t in scored:
        print(f"{t.score:.4f}\t{t.log_probability:.4f}")


def _plain(translation: Translation) -> dict[str, Any]:
    """Return a translation as a JSON object. A score of -inf (text that the model can never write) becomes null."""
    scores = {"score": translation.score, "log_probability": translation.log_probability}
    return {"text": translation.text, **{key: n if math.isfinite(n) else None for key, n in scores.items()}}

"""`manyheads generate`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from manyheads.cli.lines import answered, one_line
from manyheads.cli.models import model_for
from manyheads.cli.output import document
from manyheads.cli.parser import MODEL, Verbs, positive

if TYPE_CHECKING:
    from manyheads.tasks.language.predictor import Continuation


def add(verbs: Verbs) -> None:
    verb = verbs.add("generate", _generate, "continue texts, or stdin line by line", MODEL, as_json=True)
    verb.add_argument("rest", nargs="*", metavar="TEXT", help="none: one line in on stdin, one line out")
    verb.add_argument("--max-tokens", type=positive(int), default=100, metavar="N", help="at most (default: 100)")
    verb.add_argument("--temperature", type=float, default=1.0, metavar="T", help="0 is greedy (default: 1)")
    verb.add_argument("--top-k", type=positive(int), metavar="K", help="of the K most probable tokens only")
    verb.add_argument("--top-p", type=float, metavar="P", help="of the most probable tokens that make up P only")
    verb.add_argument("--repetition-penalty", type=float, default=1.0, metavar="R",
                      help="above 1 disfavours tokens that the text has (default: 1)")  # fmt: skip
    verb.add_argument("--seed", type=_seed, default=0, metavar="N",
                      help="of the first text, those behind it count on (default: 0)")  # fmt: skip
    verb.add_argument("--stop", action="append", default=[], metavar="STRING", help="ends a text before it; repeatable")
    verb.add_argument("--stream", action="store_true", help="write every piece of text as it comes")


def _seed(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to {2**63 - 1}, got {text!r}")
    return value


def _generate(options: argparse.Namespace) -> None:
    if options.stream and options.json:
        raise ValueError("--stream writes pieces of text, --json one document: give one of them")
    from manyheads.generation import Sampling

    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.repetition_penalty)
    generator = model_for("generate", options.model)
    how: dict[str, Any] = {"sampling": sampling, "max_tokens": options.max_tokens, "stop": options.stop}
    # arguments may be answered with several lines; a line of stdin is answered with one
    shown = (lambda text: text) if options.rest else one_line
    documents: list[dict[str, Any]] = []
    done = 0

    def continuations(texts: list[str]) -> list[Continuation]:
        nonlocal done
        seeds = range(options.seed + done, options.seed + done + len(texts))
        done += len(texts)
        if not options.stream:
            return generator.continuations(texts, **how, seed=list(seeds))

        def write(piece: str) -> None:
            sys.stdout.write(shown(piece))
            sys.stdout.flush()

        generator.encode(texts)  # an error comes before any output
        found = []
        for text, seed in zip(texts, seeds, strict=True):  # one text at a time has the line
            write(text)
            found += generator.continuations([text], **how, seed=seed, stream=lambda _, piece: write(piece))
            sys.stdout.write("\n")
        return found

    for _, _, found in answered(options.rest, continuations):
        if options.json:
            documents.append(asdict(found))
        elif not options.stream:
            print(shown(str(found)))
    if options.json:
        document(documents)

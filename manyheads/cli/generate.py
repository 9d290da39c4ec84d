"""The command `manyheads generate`: continue texts with a language model."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from manyheads.cli.lines import answered, one_line, refuse_files
from manyheads.cli.loading import PRECISION, PROCESSES, in_processes, model_for
from manyheads.cli.output import document
from manyheads.cli.parser import JSON, MODEL, TEXTS, Flag, Option, Verbs, whole
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.training.distributed import is_rank

if TYPE_CHECKING:
    from manyheads.tasks.language.predictor import Continuation


# This limit repeats the one in tasks/language/predictor.py, because to import that module would take seconds.
MAX_NEW_TOKENS = 100_000
TELLING = 5.0  # seconds between two progress messages


def add(verbs: Verbs) -> None:
    verbs.add(
        "generate", _generate, "continue texts, from arguments or stdin", MODEL, JSON,
        TEXTS,
        Option("--max-tokens", "N", "maximum number of new tokens (default: 100)",
               whole(1, MAX_NEW_TOKENS), default=100),
        Option("--temperature", "T", "sampling temperature; 0 is greedy (default: 1)", float, default=1.0),
        Option("--top-k", "K", "sample from the K most probable tokens", whole(1, 10**9)),
        Option("--top-p", "P", "sample from the most probable tokens with total probability P", float),
        Option("--repetition-penalty", "R", "values above 1 make tokens of the text less likely (default: 1)",
               float, default=1.0),
        Option("--seed", "N", "seed of the first continuation; each further one adds 1 (default: 0)",
               whole(0, 2**63 - 1), default=0),
        Option("--stop", "STRING", "end a text before this string; repeatable", repeatable=True),
        Option("--samples", "N", "number of continuations of each text (default: 1)", whole(1, 1000), default=1),
        Flag("--stream", "print text as it is generated"),
        PRECISION, PROCESSES,
        example='manyheads generate runs/language-modeling "Once upon a time" --max-tokens 50',
    )  # fmt: skip


@in_processes
def _generate(options: argparse.Namespace) -> None:
    if options.stream and options.json:
        raise UserError("--stream prints pieces of text, --json one document: use one of the two")
    if options.stream and (options.processes > 1 or is_rank()):
        raise UserError("--stream runs in one process: leave out --processes")
    from manyheads.generation import Sampling

    sampling = Sampling(options.temperature, options.top_k, options.top_p, options.repetition_penalty)
    refuse_files(options.rest)
    model = model_for("generate", options.model, options.precision)
    how: JsonObject = {"sampling": sampling, "max_tokens": options.max_tokens, "stop": options.stop}
    # Text given as an argument may span several lines. Text from stdin has one line.
    shown = (lambda text: text) if options.rest else one_line
    documents: list[JsonObject] = []
    done = 0

    def continuations(texts: list[str]) -> list[list[Continuation]]:
        found = continued([text for text in texts for _ in range(options.samples)])
        return [found[i : i + options.samples] for i in range(0, len(found), options.samples)]

    def continued(texts: list[str]) -> list[Continuation]:
        nonlocal done
        seeds = range(options.seed + done, options.seed + done + len(texts))
        done += len(texts)
        if not options.stream:
            return model.continuations(texts, **how, seed=list(seeds), stream=_progress())

        def write(piece: str) -> None:
            sys.stdout.write(shown(piece))
            sys.stdout.flush()

        # The whole input is checked first, so that an error is raised before any output is printed.
        model.encode(texts)
        written = []
        # Stream the texts one after another, not in a batch, so that the output of different texts is not mixed.
        for text, seed in zip(texts, seeds, strict=True):
            write(text)
            written += model.continuations([text], **how, seed=seed, stream=lambda _, piece: write(piece))
            sys.stdout.write("\n")
        return written

    for _, _, samples in answered(options.rest, continuations):
        if options.json:
            documents += map(asdict, samples)
        elif not options.stream:
            print("\n".join(shown(str(continuation)) for continuation in samples))
    if options.json:
        document(documents)


def _progress() -> Callable[[int, str], None]:
    """Return a callback that prints progress to stderr every few seconds while texts are generated in batches.

    The generated texts themselves are printed only at the end.
    """
    characters, last = 0, time.monotonic()

    def tell(_: int, piece: str) -> None:
        nonlocal characters, last
        characters += len(piece)
        if time.monotonic() - last > TELLING:
            print(f"manyheads: {characters:,} characters so far", file=sys.stderr)
            last = time.monotonic()

    return tell

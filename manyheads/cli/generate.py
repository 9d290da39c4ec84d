"""The command `manyheads generate`: continue texts with a language model, or complete images."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.cli.classify import images_in
from manyheads.cli.lines import answered, one_line, refuse_files
from manyheads.cli.loading import PRECISION, PROCESSES, in_processes, model_for
from manyheads.cli.output import check_file, document
from manyheads.cli.parser import JSON, MODEL, Flag, Option, Positional, Verbs, number, whole
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.training.distributed import is_rank

if TYPE_CHECKING:
    from manyheads.tasks.language.predictor import Continuation
    from manyheads.tasks.loading import LoadedModel


# This limit repeats the one in tasks/language/predictor.py, because to import that module would take seconds.
MAX_NEW_TOKENS = 100_000
MAX_TOKENS = 100  # default number of new tokens
PICTURES = (".png", ".jpg")
TELLING = 5.0  # seconds between two progress messages


def add(verbs: Verbs) -> None:
    verbs.add(
        "generate", _generate, "continue texts, from arguments or stdin, or complete images", MODEL, JSON,
        Positional("TEXT|IMAGE", "without arguments, read one text per line of stdin", "rest", nargs="*"),
        Option("--max-tokens", "N", "maximum number of new tokens (default: 100)", whole(1, MAX_NEW_TOKENS)),
        Option("--temperature", "T", "sampling temperature; 0 is greedy (default: 1)", float, default=1.0),
        Option("--top-k", "K", "sample from the K most probable tokens", whole(1, 10**9)),
        Option("--top-p", "P", "sample from the most probable tokens with total probability P", float),
        Option("--repetition-penalty", "R", "values above 1 make tokens of the text less likely (default: 1)", float),
        Option("--seed", "N", "seed of the first continuation; each further one adds 1 (default: 0)",
               whole(0, 2**63 - 1), default=0),
        Option("--stop", "STRING", "end a text before this string; repeatable", repeatable=True),
        Option("--samples", "N", "number of continuations of each input (default: 1)", whole(1, 1000), default=1),
        Flag("--stream", "print text as it is generated"),
        Option("--keep", "F", "fraction of an image to keep (default: 0.5)", number(0, 1)),
        Option("--out", "FILE.png", "picture of images, kept parts and completions (default: completions.png)", Path),
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

    penalty = 1.0 if options.repetition_penalty is None else options.repetition_penalty
    sampling = Sampling(options.temperature, options.top_k, options.top_p, penalty)
    model = model_for("generate", options.model, options.precision)
    kinds = {"texts": ("max_tokens", "repetition_penalty", "stop", "stream", "json"), "images": ("keep", "out")}
    for name in (name for kind, names in kinds.items() if kind != model.reads for name in names):
        if vars(options)[name] not in (None, False, []):
            raise UserError(f"--{name.replace('_', '-')}: no effect, because {options.model} reads {model.reads}")
    if model.reads == "images":
        return _complete(model, options)
    refuse_files(options.rest)
    max_tokens = options.max_tokens or MAX_TOKENS
    how: JsonObject = {"sampling": sampling, "max_tokens": max_tokens, "stop": options.stop}
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


def _complete(model: LoadedModel, options: argparse.Namespace) -> None:
    """Draw every image, its kept part and its completions in a row."""
    from manyheads.analysis.figures.completions import draw_completions
    from manyheads.data.images.checking import open_image

    out, palette = options.out or Path("completions.png"), model.preprocessing
    check_file(out, PICTURES, f"expected a name in {' or '.join(PICTURES)}", inputs=options.rest)
    if not options.rest:
        raise UserError("found no images: give one IMAGE or more")
    keep = 0.5 if options.keep is None else options.keep
    images = [open_image(image) for path in options.rest for image in images_in(path)]
    found = model.generate(
        images, keep=keep, samples=options.samples, temperature=options.temperature, top_k=options.top_k,
        top_p=options.top_p, seed=options.seed,
    )  # fmt: skip
    ids = [palette.array(image) for image in images]
    starts = [[palette.picture(row), palette.picture(row[: int(keep * len(row))])] for row in ids]
    draw_completions(out, [[*start, *completions] for start, completions in zip(starts, found, strict=True)])
    print(out)


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

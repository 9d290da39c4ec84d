"""The command `manyheads translate`: translate texts."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from manyheads.cli.lines import answered, one_line, read_lines, refuse_files, stdin
from manyheads.cli.loading import PRECISION, PROCESSES, ensemble, in_processes, model_for
from manyheads.cli.parser import JSON, MODEL, TEXTS, Flag, Option, Verbs, number, whole
from manyheads.cli.tables import reads_table, refuse_table_options, table_options, write_predictions
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.files import write as write_file
from manyheads.tasks.translation import MAX_BEAMS
from manyheads.training.distributed import distributed_context

if TYPE_CHECKING:
    from manyheads.tasks.tables import Inputs, RowTask
    from manyheads.tasks.translation.options import Translation
    from manyheads.tasks.translation.predictor import Translator


def add(verbs: Verbs) -> None:
    verbs.add(
        "translate", _translate, "translate texts, from arguments or stdin", MODEL, JSON,
        TEXTS,
        Option("--beam", "N", "beam size (default: the run's, or 4; --force: 5)",
               whole(1, MAX_BEAMS)),
        Option("--alpha", "A", "length penalty (default: the run's, or 0.6)", number(0, 10)),
        Option("--nbest", "N", "print line number, score and text of the N best", whole(1, MAX_BEAMS)),
        Option("--score-target", "FILE", "score the lines of FILE as translations"),
        Option("--input", "FILE", "translate the lines of FILE, or each row of a table"),
        Option("--output", "FILE", "write the output, or the table with translations"),
        *table_options("text")[2:],
        Flag("--alignments", "also print word pairs, as 0-0 1-2"),
        Option("--prefix", "TEXT", "text that begins every translation", default=""),
        Option("--force", "WORD", "word that occurs in every translation; repeatable", repeatable=True),
        Option("--ban", "WORD", "word that never occurs; repeatable", repeatable=True),
        Option("--no-repeat", "N", "repeat no N tokens", whole(1, 1000), default=0),
        Option("--min-length", "N", "minimum number of tokens", whole(0, 10_000), default=0),
        Flag("--copy-unknown", "replace unknown words by the words they attend to"),
        Option("--temperature", "T", "draw translations at random, no search", float),
        Option("--top-k", "K", "draw from the K likeliest tokens", whole(1, 10**9)),
        Option("--top-p", "P", "draw from tokens of total probability P", float),
        Option("--seed", "N", "random seed (default: 0)", whole(0, 2**63 - 1), default=0),
        Flag("--truncate", "shorten texts that are too long"),
        ensemble("; after texts"), PRECISION, PROCESSES,
        example='manyheads translate runs/translation "May 3, 2024"',
        usage="manyheads translate [OPTIONS] MODEL [TEXT ...]",
    )  # fmt: skip


@in_processes
def _translate(options: argparse.Namespace) -> None:
    from manyheads.data.readers.tables import is_table

    _check(options)
    if options.input is not None and is_table(options.input):
        reads_table(options, ("nbest", "score_target", "alignments"))
        translator = model_for("translate", options.model, options.precision, options.ensemble)
        return write_predictions(options, _rows(translator, options))
    refuse_table_options(options, ("columns", "overwrite", "skip_bad_lines"))
    targets = list(read_lines(Path(options.score_target))) if options.score_target else None
    lines = options.rest if options.input is None else list(read_lines(Path(options.input)))
    if options.input is None:
        refuse_files(lines, "to translate its lines, use --input {0}; to use its name, echo {0} |")
    decoding = _decoding(options)
    translator = model_for("translate", options.model, options.precision, options.ensemble)
    written: list[str] = []
    write = print if options.output is None else written.append
    if targets is not None:
        _score(translator, lines, targets, options, write)
    else:
        _print_translations(translator, lines, decoding, options, write)
    if options.output is not None and distributed_context().first:
        write_file(Path(options.output), "".join(f"{line}\n" for line in written))


def _check(options: argparse.Namespace) -> None:
    """Raise UserError for options that exclude each other."""
    if options.score_target and (options.nbest or options.truncate or options.alignments):
        unread = "--nbest" if options.nbest else "--truncate" if options.truncate else "--alignments"
        raise UserError(f"--score-target scores complete texts: leave out {unread}")
    if options.nbest and options.beam and options.nbest > options.beam and options.temperature is None:
        raise UserError(
            f"--nbest {options.nbest} exceeds the beam: expected --beam {options.nbest} or more, found {options.beam}"
        )
    if None not in (options.input, options.output) and Path(options.input).resolve() == Path(options.output).resolve():
        raise UserError(f"--output {options.output} is the input: give another file")
    if options.score_target and (options.force or options.ban or options.prefix or options.temperature is not None):
        raise UserError("--score-target scores given texts: leave out options that change translations")
    if options.input is not None and options.rest:
        raise UserError("give texts or --input FILE, not both")
    if options.temperature is None and (options.top_k is not None or options.top_p is not None):
        raise UserError("--top-k and --top-p apply to random translations: add --temperature 1")


def _decoding(options: argparse.Namespace) -> JsonObject:
    """Return the options of decoding for `Translator.nbest`."""
    from manyheads.tasks.translation.options import Options

    return {name: vars(options)[name] for name in Options.__annotations__}


def _rows(translator: Translator, options: argparse.Namespace) -> RowTask:
    """Return the translations of the texts in the table of --input."""
    from manyheads.data.readers.labeled import TEXTS
    from manyheads.tasks.evaluation import record_of
    from manyheads.tasks.tables import RowTask, choose_column, text_reader

    decoding, done, recorded = _decoding(options), 0, record_of(translator.path).get("data", {})
    candidates = ("source", *TEXTS, recorded.get("source"))
    name = choose_column(Path(options.input), "text", (options.columns or {}).get("text"), candidates)

    def translations(rows: Sequence[Inputs]) -> list[JsonObject | str]:
        nonlocal done
        ranked = translator.nbest([text for (text,) in rows], 1, **{**decoding, "seed": (options.seed + done) % 2**63})
        done += len(rows)
        return [{"translation": best.text} for (best,) in ranked]

    return RowTask(text_reader(name), translations, {"translation": str})


def _print_translations(
    translator: Translator, lines: list[str], decoding: JsonObject, options: argparse.Namespace,
    write: Callable[[str], None],
) -> None:  # fmt: skip
    documents: list[JsonObject] = []
    done = 0

    def translations(texts: list[str]) -> list[tuple[list[Translation], list[str]]]:
        nonlocal done
        count = options.nbest or 1
        ranked = translator.nbest(texts, count, **{**decoding, "seed": (options.seed + done) % 2**63})
        done += len(texts) * count
        pairs = [[""] * len(found) for found in ranked]
        if options.alignments:
            flat = [(text, t.text) for text, found in zip(texts, ranked, strict=True) for t in found]
            aligned = iter(translator.alignments([a for a, _ in flat], [b for _, b in flat]))
            pairs = [[" ".join(f"{a}-{b}" for a, b in next(aligned)) for _ in found] for found in ranked]
        return list(zip(ranked, pairs, strict=True))

    for line, text, (ranked, pairs) in answered(lines, translations, options.input):
        rows = list(zip(ranked, pairs, strict=True))
        if options.json:
            more = [{"alignment": pair} if options.alignments else {} for pair in pairs]
            found = [_plain(t) | extra for t, extra in zip(ranked, more, strict=True)]
            documents.append({"source": text, "translations": found})
            continue
        for t, pair in rows:
            cells = [str(line), f"{t.score:.4f}", one_line(t.text)] if options.nbest else [one_line(t.text)]
            write("\t".join([*cells, pair] if options.alignments else cells))
    if options.json:
        write(json.dumps(documents, indent=2, ensure_ascii=False, allow_nan=False))


def _score(
    translator: Translator, lines: list[str], targets: list[str], options: argparse.Namespace,
    write: Callable[[str], None],
) -> None:  # fmt: skip
    sources = lines if lines or options.input is not None else [text for chunk in stdin() for text in chunk]
    if not sources:
        raise UserError(f"{options.input or '<stdin>'}: found no texts: give one a line")
    if len(sources) != len(targets):
        raise UserError(
            f"{options.score_target}: expected {len(sources):,} lines, one per source, found {len(targets):,}"
        )
    alpha = translator.decoding["alpha"] if options.alpha is None else options.alpha
    scored = translator.score(sources, targets, alpha)
    if options.json:
        documents = [{"source": s, **_plain(t)} for s, t in zip(sources, scored, strict=True)]
        return write(json.dumps(documents, indent=2, ensure_ascii=False, allow_nan=False))
    for t in scored:
        write(f"{t.score:.4f}\t{t.log_probability:.4f}")


def _plain(translation: Translation) -> JsonObject:
    """Return a translation as a JSON object. A score of -inf (text that the model can never write) becomes null."""
    scores = {"score": translation.score, "log_probability": translation.log_probability}
    return {"text": translation.text, **{key: n if math.isfinite(n) else None for key, n in scores.items()}}

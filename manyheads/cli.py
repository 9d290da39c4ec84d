"""The command `manyheads`: one verb per job. Results go to stdout, everything else to stderr.

Nothing heavy is imported before a verb needs it, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from manyheads.tasks.translation import Translation, Translator

FAILED, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141  # exit statuses
READ = 1 << 16  # bytes of stdin that are taken at most before their translations are written


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb; returns the exit status: 2 for what the user can put right, told in one line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    try:
        options = _parse(given)
        options.verb(options)
        sys.stdout.flush()
        return 0
    except BrokenPipeError:  # the reader has left: nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt as error:
        return _fail(INTERRUPTED, str(error) or "interrupted", debug)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _fail(BAD_INPUT, f"{place}{error.strerror or error}", debug)
    except ValueError as error:
        return _fail(BAD_INPUT, str(error), debug)
    except Exception as error:
        return _fail(FAILED, f"{type(error).__name__}: {error} (--debug shows where)", debug)


def _fail(status: int, message: str, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print("manyheads:", " ".join(message.split("\n")), file=sys.stderr)
    return status


class _Parser(argparse.ArgumentParser):
    """Errors in one line, with the nearest valid name."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} ({self.prog} --help)")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            close = get_close_matches(str(value), known, n=1)
            remedy = f"did you mean {close[0]}?" if close else f"valid are {', '.join(known)}"
            raise argparse.ArgumentError(None, f"unknown {action.metavar or action.dest} {value!r}: {remedy}")


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser, verbs = _parsers()
    options, extra = parser.parse_known_args(arguments)
    unknown = [word for word in extra if word.startswith("-") and word != "-"]
    if unknown:
        flags = [flag for action in verbs[options.name]._actions for flag in action.option_strings]
        close = get_close_matches(unknown[0].partition("=")[0], flags, n=1)
        verbs[options.name].error(f"unknown option {unknown[0]}" + (f": did you mean {close[0]}?" if close else ""))
    if extra:  # what argparse leaves over when options stand between: `translate MODEL --beam 5 TEXT`
        if not hasattr(options, "rest"):
            verbs[options.name].error(f"unexpected {extra[0]!r}")
        options.rest += extra
    return options


def _parsers() -> tuple[_Parser, dict[str, _Parser]]:
    from manyheads import __version__

    parser = _Parser(prog="manyheads", description="Train, use and open up Transformers.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"manyheads {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    verbs = parser.add_subparsers(dest="name", metavar="VERB", required=True, parser_class=_Parser)
    found: dict[str, _Parser] = {}

    def verb(name: str, function: Any, help: str, *positionals: tuple[str, str], as_json: bool = False) -> _Parser:
        sub = verbs.add_parser(name, help=help, description=help, allow_abbrev=False)
        sub.set_defaults(verb=function)
        sub.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help="show the traceback of an error"
        )
        if as_json:
            sub.add_argument("--json", action="store_true", help="print one JSON document")
        for metavar, text in positionals:
            sub.add_argument(metavar.lower(), metavar=metavar, help=text)
        found[name] = sub
        return sub

    model = ("MODEL", "a run, a model directory, or hub:OWNER/NAME[@REVISION]")

    verb("recipes", _recipes, "what can be trained, from which paper, with which measured score", as_json=True)

    train = verb("train", _train, "train a model", ("RECIPE", "see `manyheads recipes`"))
    train.add_argument("rest", nargs="*", metavar="key=value", help="settings, such as training.steps=100")
    train.add_argument("--config", metavar="F.yaml", help="settings from a file; key=value wins")
    train.add_argument("--out", metavar="DIR", help="the run's directory (default: runs/RECIPE)")
    train.add_argument("--init", metavar="MODEL", help="start from another model's weights")
    train.add_argument("--resume", action="store_true", help="go on with the run in --out")
    train.add_argument("--dry-run", action="store_true", help="show settings, size and estimates; train nothing")
    train.add_argument("--max-minutes", type=_positive(float), metavar="M", help="stop after M minutes, resumable")
    train.add_argument("--precision", choices=("float32", "bf16"), metavar="P", help="float32 or bf16")
    train.add_argument("--skip-bad-lines", action="store_true", help="count faulty lines of the data and go on")
    train.add_argument("--compile", action="store_true", help="compile the model (needs a C++ compiler)")

    evaluate = verb("evaluate", _evaluate, "score a model on test data", model, as_json=True)
    evaluate.add_argument("--data", metavar="PATH", help="other test data than the run's own")

    compare = verb("compare", _compare, "paired bootstrap of two runs, and the items that changed most",
                   ("FIRST", "a run"), ("SECOND", "another run"), as_json=True)  # fmt: skip
    compare.add_argument("--data", metavar="PATH", help="other test data than the first run's own")

    translate = verb("translate", _translate, "translate texts, or stdin line by line", model, as_json=True)
    translate.add_argument("rest", nargs="*", metavar="TEXT", help="none: one line in on stdin, one line out")
    translate.add_argument("--beam", type=_positive(int), default=4, metavar="N", help="1 is greedy (default: 4)")
    translate.add_argument("--alpha", type=float, default=0.6, metavar="A", help="length penalty (default: 0.6)")
    translate.add_argument("--nbest", type=_positive(int), metavar="N",
                           help="the N best of every line, as line number, score, text")  # fmt: skip
    translate.add_argument("--score-target", metavar="FILE",
                           help="score the lines of FILE as translations: score, log-probability")  # fmt: skip
    translate.add_argument("--truncate", action="store_true", help="cut texts that are longer than the model takes")

    verb("summary", _summary, "parameters per part, FLOPs, memory",
         ("MODEL", "a model, a recipe, or a preset such as transformer/base"), as_json=True)  # fmt: skip

    export = verb("export", _export, "write a model for other tools", model, ("DIR", "a new directory"))
    export.add_argument("--format", required=True, choices=("hf", "ctranslate2"), metavar="FORMAT",
                        help="hf or ctranslate2")  # fmt: skip

    verb("convert", _convert, "make a safe copy of a directory that has only pickled .bin weights",
         ("DIR", "the directory"), ("OUT", "a new directory"))  # fmt: skip
    return parser, found


def _positive(kind: type[int] | type[float]) -> Any:
    def read(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            value = kind(0)
        if not value > 0:
            what = "a positive integer" if kind is int else "a positive number"
            raise argparse.ArgumentTypeError(f"expected {what}, got {text!r}")
        return value

    return read


def _document(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _table(rows: Iterable[Sequence[object]]) -> None:
    """Aligned columns; those that hold nothing but numbers below their heading are flush right."""
    cells = [[f"{c:,}" if isinstance(c, int) else str(c) for c in row] for row in rows]
    columns = list(zip(*cells, strict=True))
    right = [all(re.fullmatch(r"[-+\d.,]*", cell) for cell in column[1:] or column) for column in columns]
    widths = [max(map(len, column)) for column in columns]
    for row in cells:
        aligned = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        print("  ".join(aligned).rstrip())


def _recipes(options: argparse.Namespace) -> None:
    from manyheads.recipes import RECIPES
    from manyheads.results import measured

    found = [
        {"recipe": name, "paper": r.paper, "trains": r.summary, "needs": r.needs, "measured": measured(name)}
        for name, r in RECIPES.items()
    ]
    if options.json:
        return _document(found)
    for recipe in found:
        print(f"{recipe['recipe']}\n    {recipe['trains']} ({recipe['paper']})\n    needs {recipe['needs']}")
        for score in recipe["measured"]:
            print(f"    measured {score}")


def _train(options: argparse.Namespace) -> None:
    import yaml

    from manyheads.recipes import train
    from manyheads.recipes.overrides import from_arguments

    report = train(
        options.recipe, from_arguments(options.rest), config=options.config, out=options.out, init=options.init,
        resume=options.resume, dry_run=options.dry_run, max_minutes=options.max_minutes, precision=options.precision,
        skip_bad_lines=options.skip_bad_lines, compile=options.compile,
    )  # fmt: skip
    if isinstance(report, Mapping) and "metrics" in report:
        _print_metrics(report["metrics"])
    elif report:
        text = report if isinstance(report, str) else yaml.safe_dump(report, sort_keys=False, allow_unicode=True)
        print(text.rstrip("\n"))


def _print_metrics(metrics: Mapping[str, Mapping[str, Any]]) -> None:
    _table((name, f"{m['value']:.4f}", m.get("signature", "")) for name, m in metrics.items())


def _evaluate(options: argparse.Namespace) -> None:
    from manyheads.tasks import load
    from manyheads.tasks.evaluation import evaluate

    metrics = evaluate(load(options.model), options.data)
    if options.json:
        return _document({"model": options.model, "data": options.data, "metrics": metrics})
    _print_metrics(metrics)


def _compare(options: argparse.Namespace) -> None:
    from manyheads.tasks import load
    from manyheads.tasks.evaluation import compare

    found = compare(load(options.first), load(options.second), options.data)
    if options.json:
        return _document(found)
    first, second = found["first"]["metrics"], found["second"]["metrics"]
    print(f"1: {options.first}\n2: {options.second}\n{found['pairs']:,} pairs\n")
    _table([("metric", "1", "2", "2 - 1")] + [
        (n, *(f"{x:.2f}" for x in (m["value"], second[n]["value"], second[n]["value"] - m["value"])))
        for n, m in first.items()
    ])  # fmt: skip
    print()
    for name, test in found["bootstrap"].items():
        verdict = "they differ" if test["p_value"] < 0.05 else "no difference beyond chance"
        print(f"{name}: paired bootstrap, p = {test['p_value']:.3f}: {verdict}")
    for item in found["most_changed"]:
        print(f"\n{item['change']:+.1f} chrF   {item['source']}")
        print(f"    1 {item['first']}\n    2 {item['second']}\n    = {item['reference']}")


def _translate(options: argparse.Namespace) -> None:
    if options.score_target and options.nbest:
        raise ValueError("--score-target scores the translations given: it goes without --nbest")
    targets = list(_lines_of(Path(options.score_target))) if options.score_target else None
    from manyheads.tasks import load

    translator = load(options.model)
    if targets is not None:
        return _score(translator, targets, options)
    document: list[dict[str, Any]] = []
    done = 0
    for texts in [options.rest] if options.rest else _stdin():
        try:
            found = translator.nbest(texts, options.nbest or 1, options.beam, options.alpha, truncate=options.truncate)
        except ValueError as error:
            raise ValueError(_placed(str(error), "text" if options.rest else "<stdin>: line", done)) from error
        for number, (text, several) in enumerate(zip(texts, found, strict=True), done + 1):
            if options.json:
                document.append({"source": text, "translations": [_plain(t) for t in several]})
            elif options.nbest:
                for t in several:
                    print(number, f"{t.score:.4f}", _one_line(t.text), sep="\t")
            else:
                print(_one_line(several[0].text))
        done += len(texts)
        sys.stdout.flush()
    if options.json:
        _document(document)


def _placed(message: str, where: str, done: int) -> str:
    """A translator counts from the first text that it was given; tell the line of the whole input."""
    found = re.match(r"text (\d+)", message)
    return f"{where} {int(found[1]) + done}{message[found.end() :]}" if found else message


def _score(translator: Translator, targets: list[str], options: argparse.Namespace) -> None:
    sources = options.rest or [text for chunk in _stdin() for text in chunk]
    if len(sources) != len(targets):
        raise ValueError(f"{options.score_target}: {len(targets):,} lines for {len(sources):,} sources: align them")
    scored = translator.score(sources, targets, options.alpha)
    if options.json:
        return _document([{"source": s, **_plain(t)} for s, t in zip(sources, scored, strict=True)])
    for t in scored:
        print(f"{t.score:.4f}\t{t.log_probability:.4f}")


def _plain(translation: Translation) -> dict[str, Any]:
    t = translation
    return {"text": t.text, "score": t.score, "log_probability": t.log_probability}


def _one_line(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")


def _stdin() -> Iterator[list[str]]:
    """The lines of stdin in chunks of what has arrived, so that a slow writer is answered line by line."""
    rest, number = b"", 0
    while block := os.read(sys.stdin.fileno(), READ):
        *whole, rest = (rest + block).split(b"\n")
        if whole:
            yield [_decode(line, "<stdin>", number + i) for i, line in enumerate(whole, 1)]
            number += len(whole)
    if rest:
        yield [_decode(rest, "<stdin>", number + 1)]


def _lines_of(file: Path) -> Iterator[str]:
    lines = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1] if lines[-1] == b"" else lines, 1):
        yield _decode(line, str(file), number)


def _decode(line: bytes, file: str, number: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{file}:{number}: invalid UTF-8: convert the text, for example with iconv") from None


def _summary(options: argparse.Namespace) -> None:
    from manyheads.analysis import accounting, wmt14
    from manyheads.recipes import RECIPES

    name = options.model
    cost = None
    if name in accounting.preset_names():
        model, cost = accounting.preset_model(name), wmt14.training_cost(name)
    elif name in RECIPES:
        from manyheads.recipes.translation import planned_model

        model = accounting.meta_model(planned_model(RECIPES[name].load()[1]))
    else:
        names = [*accounting.preset_names(), *RECIPES]
        close = get_close_matches(name, names, n=1)
        if not name.startswith("hub:") and not Path(name).exists():
            remedy = f"did you mean {close[0]}?" if close else f"presets and recipes are {', '.join(names)}"
            raise ValueError(f"{name}: no such directory, recipe or preset: {remedy}")
        from manyheads.directory import load

        model = load(name).model
    found = accounting.summary(model)
    if options.json:
        return _document({"name": name, **found, **({"training_cost": cost} if cost else {})})
    _print_summary(name, found)
    if cost:
        verdict = "agrees" if cost["agrees"] else "DIFFERS"
        print(f"\ntraining cost    {cost['arithmetic']} = {cost['flops']:.3e} FLOPs", end="")
        print(f", published {cost['published']:.1e}: {verdict}")
        print(f"published BLEU   {', '.join(f'{pair} {score}' for pair, score in cost['bleu'].items())}")
        print(f"source           {cost['source']}")


def _print_summary(name: str, found: Mapping[str, Any]) -> None:
    parameters, flops, memory = found["parameters"], found["flops"], found["memory"]
    parts = dict.fromkeys([*parameters["parts"], *flops["parts"]])
    print(f"{name}: {parameters['total']:,} parameters, {parameters['non_embedding']:,} without embeddings")
    print(f"tied: {found['config']['tie']}\n")

    def mflops(count: float) -> str:
        return f"{count / 1e6:,.1f}"

    pair = f"{flops['source_tokens']} -> {flops['target_tokens']} tokens"
    _table([
        ("part", "parameters", "MFLOPs"),
        *((p, parameters["parts"].get(p, ""), mflops(flops["parts"][p]) if p in flops["parts"] else "") for p in parts),
        ("total", parameters["total"], mflops(flops["forward"])),
    ])  # fmt: skip
    print(f"\nFLOPs            forward pass of one sentence pair, {pair}; {flops['convention']}")
    print(f"  per token      {mflops(flops['forward_per_target_token'])} MFLOPs forward, training on it 3 times that")
    print(f"memory           {memory['weights'] / 1e6:,.1f} MB of weights (float32)")
    print(f"  training       {memory['training'] / 1e6:,.1f} MB with gradients and Adam's moments, without activations")
    print(
        f"  decoding       {memory['cache_per_target_token']:,} bytes of cache per target token,"
        f" {memory['cache_per_source_token']:,} per source token"
    )


def _export(options: argparse.Namespace) -> None:
    from manyheads.directory import export

    family = export(options.model, options.dir, options.format)
    print(f"{options.dir}: {options.format}, model type {family}", file=sys.stderr)


def _convert(options: argparse.Namespace) -> None:
    from manyheads.directory import convert

    convert(options.dir, options.out)
    print(f"{options.out}: safetensors", file=sys.stderr)

"""`python -m lab.results_table`: put the tables of what was measured between the markers of the pages."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from statistics import mean
from typing import Any

from lab import (
    biases_page,
    capacity_page,
    complexity_page,
    concordance_page,
    evidence_page,
    figures_page,
    heads_cost,
    parts_page,
    rivals_page,
    service_page,
    speed_page,
    survival_page,
    weights,
)
from lab.best_results import main_metric, rank
from lab.records import (
    ablations,
    describe,
    describe_rows,
    groups,
    matching,
    name_and_settings,
    records,
    run_of,
    scores,
    shared,
    took,
)
from lab.results_plot import DIRECTIONS, HUNGER, HUNGRY, READINGS, forward_flops, hunger, readings
from manyheads.tasks.registry import RECIPES
from papers.heads.published import ANTECEDENTS, PUBLISHED

TABLES = {  # the columns of each
    "translation/ablate": ("perplexity", "bleu_13a"), "deit/ablate": ("loss", "top1"),
    "agreement": ("accuracy_8_modifiers",), "moved-digits": ("top1_moved",),
}  # fmt: skip
SHOWN = 12  # rows of each table on the page of a paper
FREQUENT = 200  # words of a relation that is shown; rarer ones are in the record
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


def table(*recipes: str, rivals: Sequence[str] = (), shown: int | None = None) -> str:
    """The measured runs of these recipes, or of all: a table for each set of metrics, a row for each way of running.

    rivals  other recipes, whose runs are shown where one of these was trained alike, whatever the model's sizes
    shown   maximum number of rows of a table; a longer table has the best runs of each recipe, and a link to the others
    """
    runs = [record for record in records() if not recipes or record["recipe"] in recipes]
    tables = ablations(runs)
    runs = [record for record in runs if run_of(record) not in tables]
    alike = [_training(record) for record in runs]
    runs += [record for record in records() if record["recipe"] in rivals and _training(record) in alike]
    by_metrics: dict[tuple[str, ...], list[list[dict[str, Any]]]] = {}
    for group in groups(runs):
        by_metrics.setdefault(tuple(group[0]["metrics"]), []).append(group)
    parts = [_best(list(metrics), found, shown or len(found)) for metrics, found in by_metrics.items()]
    return "\n\n".join(
        [*parts, *(_ablations(recipe, tables) for recipe in sorted({r[0]["recipe"] for r in tables.values()}))]
    )


def _best(metrics: list[str], runs: list[list[dict[str, Any]]], shown: int) -> str:
    """Return the table of these runs, or of the best ones: of each recipe its best, then its second best, and so on."""
    if len(runs) <= shown:
        return _table(metrics, runs)
    better: Counter[str] = Counter()  # number of better groups of the same recipe
    places = []
    for group in sorted(runs, key=rank):
        places.append((better[group[0]["recipe"]], group))
        better[group[0]["recipe"]] += 1
    best = sorted((group for _, group in sorted(places, key=itemgetter(0))[:shown]), key=rank)
    others = (
        f"The table above shows {shown} of our {len(runs)} combinations of settings. "
        "[All results](../measured/results.md) shows all of them."
    )
    return f"{_table(metrics, best)}\n\n{others}"


def _ablations(recipe: str, tables: dict[str, list[dict[str, Any]]]) -> str:
    """The rows of a paper's table: what each changes, and its scores in each run of the recipe."""
    mine = {run: rows for run, rows in tables.items() if rows[0]["recipe"] == recipe}
    metrics = TABLES.get(recipe, tuple(next(iter(mine.values()))[0]["metrics"]))
    by_change: dict[str, dict[str, dict[str, Any]]] = {}
    for run, rows in mine.items():
        for row in rows:
            by_change.setdefault(_change(row, shared(rows)), {})[run] = row
    columns = [(run, metric) for run in mine for metric in metrics]
    head = [[f"`{recipe}`", "parameters", *(f"`{run}`: {metric}" for run, metric in columns)],
            ["---", "--:", *["--:"] * len(columns)]]  # fmt: skip
    body = []
    for change in sorted(by_change, key=_in_order):
        of = by_change[change]
        size = next(iter(of.values()))["parameters"]
        body.append(
            [
                change or "base",
                f"{size:,}",
                *(scores([of[run]])[metric] if run in of else "" for run, metric in columns),
            ]
        )
    about = [f"`{run}`: {describe_rows(rows)}; {len(rows)} runs of {took(rows)} on "
             f"{_machine(rows[0]['hardware'])}" for run, rows in mine.items()]  # fmt: skip
    return "\n\n".join([_markdown(head + body), "  \n".join(about)])


def _change(row: dict[str, Any], base: dict[str, Any]) -> str:
    """Return the settings that a row changes, with `heads=1` if encoder and decoder agree."""
    changes = {key: value for key, value in row["overrides"].items() if key not in base}
    names = (key.rpartition(".")[2].removeprefix("encoder_").removeprefix("decoder_") for key in changes)
    return ", ".join(dict.fromkeys(f"{name}={value}" for name, value in zip(names, changes.values(), strict=True)))


def _in_order(change: str) -> tuple[int, str, float]:
    """By name, then by size; what changes nothing first, what changes several things last."""
    name, _, value = change.partition("=")
    return change.count("="), name, float(value) if value.replace(".", "").isdigit() else 0.0


def by_room() -> str:
    """Return all results, below the names of the tasks of their recipes."""
    rooms: dict[str, list[str]] = {}
    for name, recipe in RECIPES.items():
        rooms.setdefault(recipe.task.split(".")[2], []).append(name)
    rooms["experiments of papers"] = sorted({record["recipe"] for record in records()} - {*RECIPES})
    tables = {room: table(*recipes) for room, recipes in rooms.items()}
    return "\n\n".join(f"## {room.replace('_', ' ').capitalize()}\n\n{text}" for room, text in tables.items() if text)


def _training(record: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run's data and training."""
    untold = ("model.", "training.seed")
    return {key: value for key, value in record["overrides"].items() if not key.startswith(untold)}


def _table(metrics: list[str], runs: list[list[dict[str, Any]]]) -> str:
    """Return a table of runs, with name and main score first, and a line that names the processors."""
    images = "top1" in metrics
    metrics = sorted(metrics, key=lambda name: name != main_metric(runs[0][0]))
    sizes = ["parameters", *(["MFLOP an image"] if images else [])]
    rows = [["recipe", *metrics, *sizes, "time", "settings"]]
    machines: dict[str, str] = {}  # letter of each processor
    for group in runs:
        score, first = scores(group), group[0]
        letters = sorted({_letter(_machine(record["hardware"]), machines) for record in group})
        name, settings = name_and_settings(group)
        rows.append([
            f"`{first['recipe']}` {name}".rstrip(), *(score.get(m, "") for m in metrics), f"{first['parameters']:,}",
            *([f"{forward_flops(first) / 1e6:,.1f}"] if images else []),
            f"{took(group)} ({', '.join(letters)})", settings,
        ])  # fmt: skip
    rows.insert(1, ["---", *["--:"] * len(sizes + metrics), "--:", "---"])
    return f"{_markdown(rows)}\n\nProcessors: {'; '.join(f'({at}) {machine}' for machine, at in machines.items())}."


def _letter(machine: str, machines: dict[str, str]) -> str:
    return machines.setdefault(machine, "abcdefghijklmnopqrstuvwxyz"[len(machines)])


def models_table() -> str:
    """Return the training throughput of models, and the limit by their matrix products."""
    tables = []
    for record in (bench for bench in records("bench") if "rows" in bench and "ceilings" not in bench):
        head = [f"trained on {_processor(record['hardware'])}", "parameters", "MFLOP an image", "images/s", "limit"]
        rows = [head, ["---", *["--:"] * 4]]
        for row in record["rows"]:
            rate, (recipe, comma, settings) = row["images_per_second"], row["model"].partition(", ")
            rows.append([
                f"`{recipe}`{comma}{settings}",
                f"{row['parameters']:,}", f"{row['forward_flops'] / 1e6:,.1f}",
                f"{rate['median']:,.0f} ({rate['min']:,.0f} to {rate['max']:,.0f})",
                f"{row['limit_images_per_second']:,.0f}",
            ])  # fmt: skip
        tables.append(_markdown(rows))
    return "\n\n".join(["## Throughput of image models", *tables] if tables else [])


# summary for a first look: the work, the recipe and its settings, and one score
FIRST = (
    ("translate dates, amounts and names into German", "translation", "en-de", "bleu_13a"),
    (
        "translate photo captions, English to French, 10,000 steps",
        "translation/multi30k",
        "en-fr, bf16",
        "bleu_moses_lc",
    ),
    (
        "translate the same captions with the Transformer, 8,000 steps",
        "translation/rivals",
        "en-fr, steps=8000, rows=transformer, bf16",
        "bleu_moses_lc",
    ),
    (
        "translate the same captions with ConvS2S, 8,000 steps",
        "translation/rivals",
        "en-fr, steps=8000, learning_rate=0.064, rows=convs2s, bf16",
        "bleu_moses_lc",
    ),
    ("name the language of a phrase, one of 60", "text-classification", "default settings", "accuracy"),
    ("classify film reviews as positive or negative", "imdb/corrected", "3 seeds", "accuracy"),
    ("classify sentences, fine-tuned from MiniLM", "sst2", "from all-MiniLM-L6-v2", "accuracy"),
    (
        "find people, places and organizations, fine-tuned",
        "conll2003",
        "from all-MiniLM-L6-v2, learning_rate=0.0001",
        "entity_f1",
    ),
    ("answer questions about a text, fine-tuned", "xquad", "from all-MiniLM-L6-v2", "squad_f1"),
    ("continue text in Shakespeare's style", "language-modeling/tiny-shakespeare", "3 seeds", "loss"),
    ("classify handwritten digits with a ViT", "mnist/vit", "default settings", "top1"),
    ("find handwritten digits in a scene with DETR", "detection", "epochs=24", "ap50"),
    ("complete handwritten digits with iGPT", "image-writing", "default settings", "bits_per_pixel"),
    ("classify small photos with a ResNet", "cifar10/resnet", "batch_items=64, epochs=20", "top1"),
)


def first_table() -> str:
    """Return one score for each kind of work, averaged over seeds. Raise ValueError if a listed run has no record."""
    kept = {(g[0]["recipe"], describe(g).removesuffix(f", {len(g)} seeds")): g for g in groups(records())}
    rows = [["task", "score", "recipe", "parameters", "time"], ["---", "--:", "---", "--:", "--:"]]
    for what, recipe, run, metric in FIRST:
        if (recipe, run) not in kept:
            raise ValueError(f"no record of {recipe}, {run}")
        group = kept[recipe, run]
        rows.append([
            what, f"{metric} {scores(group)[metric]}", f"`{recipe}`", f"{group[0]['parameters']:,}", took(group),
        ])  # fmt: skip
    return _markdown(rows)


def costs_table() -> str:
    """Return the relative cost of recording maps, as ratios of consecutive runs."""
    rows: list[list[str]] = []
    for record in (bench for bench in records("bench") if "cost" in bench):
        head = [f"`{record['model']}`, {record['batch']} x {record['tokens']} tokens", *record["cost"], "processor"]
        ratios = (f"{r['median']:.2f} ({r['min']:.2f} to {r['max']:.2f})" for r in record["cost"].values())
        rows += [head, ["---", *["--:"] * len(record["cost"]), "---"],
                 ["time of recording", *ratios, _processor(record["hardware"])]]  # fmt: skip
    return f"## Cost of recording heads\n\n{_markdown(rows)}" if rows else ""


def _machine(hardware: dict[str, Any]) -> str:
    return str(hardware.get("gpu") or _processor(hardware))


def _processor(hardware: dict[str, Any]) -> str:
    return f"{hardware['threads']} thread{'s' * (hardware['threads'] > 1)}, {hardware['cpu']}"


def probe_table() -> str:
    """Return the heads that follow relations, with the best fixed offset, and the heads that find antecedents."""
    parts = []
    for record in records("probes"):
        parts.append(f"## {record['model']} on {record['treebank']}")
        frequent = [row for row in record["relations"] if row["items"] >= FREQUENT]
        parts.append(_best_heads("relation", frequent))
        if record["coreference"]:
            parts.append(_best_heads("mention of an entity", record["coreference"]))
        if record["parsers"]:
            rows = [(name, f"{s['value']:.3f} ({s['low']:.3f} to {s['high']:.3f})")
                    for name, s in record["parsers"].items()]  # fmt: skip
            parts.append(_markdown([["a parser that sees", "UAS (95%)"], ["---", "--:"], *map(list, rows)]))
    return "\n\n".join(parts)


def _best_heads(of: str, heads: list[dict[str, Any]]) -> str:
    rows = [[of, "count", "head", "looks", "accuracy (95%)", "held out", "best baseline"],
            ["---", "--:", "--:", "---", "--:", "--:", "--:"]]  # fmt: skip
    for row in heads:
        held = row["held_out"]
        rows.append([
            row["group"], f"{row['items']:,}", f"{row['layer']}-{row['head']}", row["direction"],
            f"{row['accuracy']:.3f} ({row['low']:.3f} to {row['high']:.3f})",
            "" if held is None else f"{held:.3f}", f"{row['base']:.3f} ({row['baseline']})",
        ])  # fmt: skip
    return _markdown(rows)


def published_table() -> str:
    """Return the rows of Clark et al. 2019, table 1 and section 4.3, with those of each probe; heads count from 1."""
    probes = records("probes")
    names = [f"{record['model']}, {record['treebank'].removeprefix('UD ')}" for record in probes]
    head = [["relation", "BERT-base", *names], ["---", *["---"] * (1 + len(names))]]
    columns = [{row["group"]: _head(row) for row in record["published_relations"]} for record in probes]
    rows = [[f"`{relation}`", f"{paper.layer}-{paper.head}: {paper.accuracy:.3f} ({paper.base:.3f})",
             *(heads.get(relation, "") for heads in columns)] for relation, paper in PUBLISHED.items()]  # fmt: skip
    columns = [{row["group"]: _head(row) for row in record["coreference"] or ()} for record in probes]
    rows += [[f"antecedents, {kind}", f"5-4: {accuracy:.3f}", *(heads.get(kind, "") for heads in columns)]
             for kind, accuracy in ANTECEDENTS.items()]  # fmt: skip
    return _markdown(head + rows)


def _head(row: dict[str, Any]) -> str:
    return f"{row['layer'] + 1}-{row['head'] + 1}: {row['accuracy']:.3f} ({row['base']:.3f})"


def readings_table() -> str:
    """Return the entity F1 of each of three encoders over the steps of pretraining."""
    head = [["steps", *READINGS.values()], ["--:"] * (1 + len(READINGS))]
    rows = [[f"{steps:,}", *(f"{score:.3f}" for score in scores.values())] for steps, scores in readings()]
    return f"{_markdown(head + rows)}\n\n![Entity F1 over the steps of pretraining](../images/{DIRECTIONS.name})"


def elmo_table() -> str:
    """Return the validation accuracy of ELMo's fine-tuning."""
    accuracy = [record["metrics"]["accuracy"]["value"] for record in matching("single-sentence", "init=elmo-short")]
    head = [["weights at the start", "accuracy", "seeds"], ["---", "--:", "--:"]]
    return _markdown([*head, ["pretrained", f"{mean(accuracy):.3f}", str(len(accuracy))]]) if accuracy else ""


def hunger_picture() -> str:
    """Return the pictures that `lab.results_plot` draws if there are records."""
    return f"![Accuracy by training images: {', '.join(HUNGRY.values())}](../images/{HUNGER.name})" if hunger() else ""


PAPERS = {
    "transformer": ("translation", "translation/multi30k", "translation/ablate", "translation/blog"),
    "universal": (
        "universal/copy", "universal/reverse", "universal/addition",
        "translation", "language-modeling/tiny-shakespeare",
    ),
    "text-classifier": (
        "text-classification", "imdb/plain-attention", *(f"imdb/{name}" for name in
        ("keras", "textbook", "corrected", "rnn", "lstm", "gru", "bilstm", "conv1d", "conv2d", "tfidf")),
    ),
    "seq2seq-rnn": ("universal/copy", "universal/reverse", "universal/addition"),
    "rnn-attention": (),
    "gnmt": (),
    "deep-att": (),
    "convs2s": (),
    "bytenet": (),
    "experts": (),
    "induction": (),
    "bert": ("bert/pretraining", "bert/imdb", "bert/imdb-1000", "sst2", "mrpc", "conll2003", "xquad", "tagging"),
    "roberta": ("bert/roberta",),
    "elmo": ("elmo",),
    "directions": ("reading",),
    "gpt": (
        "language-modeling", "language-modeling/tiny-shakespeare", "language-modeling/tiny-shakespeare-gpu",
        "single-sentence",
    ),
    "gpt3": (),
    "vit": ("image-classification", "mnist/vit", "cifar10/vit"),
    "deit": ("deit/ablate", "cifar10/deit", "cifar10/vit", "cifar10/resnet"),
    "squeeze-excitation": ("cifar10/se",),
    "cnn-teachers": (),
    "nonlocal": ("moving-digits", "direction", "pair", "cifar10/nonlocal"),
    "local-attention": ("cifar10/local-attention",),
    "convnet-attention": ("cifar10/sknet", "cifar10/resnest", "cifar10/gsa"),
    "conv-attention": ("conv-attention/theorem", "cifar10/conv-attention"),
    "detr": ("detection",),
    "igpt": ("image-writing", "image-writing/mnist"),
}  # fmt: skip
RIVALS = {
    **dict.fromkeys(("squeeze-excitation", "nonlocal", "local-attention", "conv-attention"), ("cifar10/resnet",)),
    "convnet-attention": ("cifar10/resnet", "cifar10/se"),
}
PAGES: dict[str, tuple[Callable[[], str], ...]] = {
    "README.md": (first_table,),
    "docs/measured/results.md": (by_room, models_table, costs_table),
    "docs/measured/heads.md": (probe_table,),
    "docs/measured/evidence.md": evidence_page.PARTS,
    "docs/measured/survival.md": survival_page.PARTS,
    "docs/measured/serving.md": service_page.PARTS,
    "docs/measured/speed.md": speed_page.PARTS,
    "docs/measured/complexity.md": (*complexity_page.PARTS, *heads_cost.PARTS),
    "docs/measured/published-weights.md": weights.PARTS,
    "docs/papers/biases.md": biases_page.PARTS,
    "docs/papers/capacity.md": capacity_page.PARTS,
    "docs/tutorials/concordance.md": concordance_page.PARTS,
    "docs/tutorials/figures.md": figures_page.PARTS,
    "docs/papers/heads.md": (published_table,),
    "docs/papers/rivals.md": rivals_page.PARTS,
    "docs/papers/ablations.md": parts_page.PARTS,
    "docs/explanation/why-each-part.md": (parts_page.short_table,),
    **{
        f"docs/papers/{page}.md": (
            *([partial(table, *recipes, rivals=RIVALS.get(page, ()), shown=SHOWN)] if recipes else []),
            *([hunger_picture] if page == "vit" else []),
            *([readings_table] if page == "directions" else []),
            *([elmo_table] if page == "elmo" else []),
        )
        for page, recipes in PAPERS.items()
    },
}


def filled(text: str, parts: tuple[Callable[[], str], ...]) -> str:
    """`text` with the present tables between its markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"expected {BEGIN} and {END} once each")
    before, rest = text.split(BEGIN)
    tables = "\n\n".join(filter(None, (part() for part in parts)))
    return f"{before}{BEGIN}\n{tables}\n{END}{rest.split(END)[1]}"


def main(root: Path = Path()) -> int:
    for page, parts in PAGES.items():
        try:
            file = root / page
            file.write_text(filled(file.read_text(encoding="utf-8"), parts), encoding="utf-8")
        except (ValueError, OSError) as error:
            print(f"{page}: {error}", file=sys.stderr)
            return 2
    return 0


def _markdown(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    raise SystemExit(main())

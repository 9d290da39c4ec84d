"""`make weights GPT2=DIR BERT=DIR VIT=DIR DEIT=DIR`: measure published weights that are on this machine.

Each row of docs/measured/published-weights.md needs one model, and perhaps data. The results are added to
`lab/results/weights.json`. Without arguments, the command prints what each row needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import manyheads
from manyheads import directory
from manyheads.cli.output import table
from manyheads.data.images.labeled_images import ImageData, read_images
from manyheads.data.readers.treebank import read_treebank
from manyheads.errors import UserError
from manyheads.files import JsonObject, read_json, write_json
from manyheads.tasks.heads.probing import probe
from manyheads.tasks.images.predictor import ImageClassifier
from manyheads.tasks.language.predictor import LanguageModel
from manyheads.training.record import hardware
from papers.command import run
from papers.heads.comparison import stanford_selections

RECORD = Path(__file__).parent / "results" / "weights.json"
RUNS = Path("runs/weights")  # of the fine-tuned models
KEYS = {
    "GPT2": "a directory of openai-community/gpt2",
    "BERT": "a directory of google-bert/bert-base-uncased",
    "VIT": "a directory of google/vit-base-patch16-224",
    "DEIT": "a directory of facebook/deit-base-distilled-patch16-224",
    "TREEBANK": "a CoNLL-U file, such as the development set of UD English GUM",
    "SST2": "a directory with train.tsv, dev.tsv and test.tsv of SST-2",
    "MRPC": "a directory with train.tsv and test.tsv of MRPC",
    "IMAGENET": "a directory with the 50,000 validation images of ImageNet, a folder for each class",
}
MODEL_TYPES = {"GPT2": "gpt2", "BERT": "bert", "VIT": "vit", "DEIT": "deit"}  # in config.json

SENTENCE = "Studying Deep-Learning is"
NEW_TOKENS = 11
CONTINUED = "Studying Deep-Learning is a great way to learn about the world around you."
# Radford 2019, sections 3.6 to 3.8: a task is given by its form
DEMONSTRATIONS = {
    "a translation": "good morning = bonjour\nthank you = merci\nthe house = la maison\nthe cat =",
    "an answer": "Q: What is the capital of Italy?\nA: Rome\nQ: What is the capital of France?\nA:",
}


class Head(NamedTuple):
    """Attention head of BERT-base in Clark et al. 2019, with layer and head counted from 1."""

    relation: str
    layer: int
    head: int
    published: float


# slides 22 to 24 of the lecture; the last one is about antecedents, on CoNLL-2012
HEADS = (
    Head("det", 8, 11, 0.943), Head("dobj", 8, 10, 0.868), Head("poss", 7, 6, 0.805), Head("auxpass", 4, 10, 0.825),
    Head("pobj", 9, 6, 0.763),
)  # fmt: skip
ANTECEDENT = Head("antecedent", 5, 4, 0.651)

Given = Mapping[str, str]
_load = cache(manyheads.load)


@dataclass(frozen=True)
class Row:
    """Row of the page.

    needs      keys of the model and of the data, see `KEYS`
    published  the published result
    minutes    estimate of the duration on two cores
    measure    function that returns the result for the given directories
    """

    shows: str
    needs: tuple[str, ...]
    published: str
    minutes: float
    measure: Callable[[Given], str]


def _sentence(given: Given) -> str:
    return f'"{_writer(given).generate(SENTENCE, max_tokens=NEW_TOKENS, temperature=0.0)}"'


def _demonstration(prompt: str) -> Callable[[Given], str]:
    def measure(given: Given) -> str:
        text = _writer(given).generate(prompt, max_tokens=8, temperature=0.0, stop="\n")
        return f'"{text.removeprefix(prompt).strip()}"'

    return measure


def _writer(given: Given) -> LanguageModel:
    writer = _load(given["GPT2"])
    if not isinstance(writer, LanguageModel):
        raise UserError(f"GPT2={given['GPT2']}: expected a language model, found a classifier")
    return writer


def _heads(given: Given) -> str:
    selections = stanford_selections(_reader(given), read_treebank(given["TREEBANK"]))
    counts = selections.counts()
    return ", ".join(
        f"{h.relation} {_accuracy(selections.accuracies(h.relation), h)} of {counts[h.relation]:,}"
        for h in HEADS
        if h.relation in counts
    )


def _antecedents(given: Given) -> str:
    found = probe(_reader(given), given["TREEBANK"]).coreference
    if found is None:
        return "the treebank has no mentions of entities"
    return f"{_accuracy(found.accuracies(), ANTECEDENT)} of {len(found.groups):,}"


def _reader(given: Given) -> Any:
    reader = _load(given["BERT"])
    config = reader.model.config
    if (config.layers, config.heads) != (12, 12):
        raise UserError(
            f"BERT={given['BERT']}: expected 12 layers of 12 heads, as in BERT-base, found {config.layers} of "
            f"{config.heads}"
        )
    return reader


def _accuracy(accuracies: Any, head: Head) -> str:
    """Return the accuracy of a head in its better direction, in percent. `accuracies` is (2, L, H)."""
    return f"{accuracies[:, head.layer - 1, head.head - 1].max():.1%}"


def _fine_tuned(recipe: str, key: str, metric: str) -> Callable[[Given], str]:
    def measure(given: Given) -> str:
        trained = manyheads.train(recipe, data=given[key], init=given["BERT"], out=RUNS / recipe, overwrite=True)
        return f"{metric} {trained['metrics'][metric]['value']:.1%}"

    return measure


def _top1(key: str) -> Callable[[Given], str]:
    def measure(given: Given) -> str:
        model = _load(given[key])
        if not isinstance(model, ImageClassifier):
            raise UserError(f"{key}={given[key]}: expected a classifier of images")
        images = imagenet(given["IMAGENET"], model.target.labels)
        return f"top1 {model.evaluate(images).metrics['top1']['value']:.2%} of {len(images):,}"

    return measure


def imagenet(folder: str, labels: tuple[str, ...]) -> ImageData:
    """Read validation images. The class folders, in the order of their names, are the labels of the model in order.

    ImageNet's folders have numbers of WordNet, such as n01440764, and published models have words, such as "tench".
    """
    images = read_images(folder)
    names = sorted({item.label for item in images.items})
    if len(names) != len(labels):
        raise UserError(
            f"IMAGENET={folder}: expected a folder for each of {len(labels):,} classes, found {len(names):,}"
        )
    named = dict(zip(names, labels, strict=True))
    return replace(images, items=[item._replace(label=named[item.label]) for item in images.items], names=labels)


ROWS = {
    "gpt2-sentence": Row("GPT-2 continues a sentence (lecture, slide 18)", ("GPT2",), f'"{CONTINUED}"', 0.2, _sentence),
    **{
        f"gpt2-{name.split()[-1]}": Row(f"GPT-2 gives {name} after examples (lecture, slide 16)", ("GPT2",), "", 0.2,
                                        _demonstration(prompt))
        for name, prompt in DEMONSTRATIONS.items()
    },
    "bert-heads": Row(
        "five heads of BERT-base follow relations (lecture, slides 22 to 24)", ("BERT", "TREEBANK"),
        ", ".join(f"{h.relation} {h.published:.1%} ({h.layer}-{h.head})" for h in HEADS), 10, _heads,
    ),
    "bert-antecedents": Row(
        "a head of BERT-base finds antecedents (lecture, slide 24)", ("BERT", "TREEBANK"),
        f"{ANTECEDENT.published:.1%} ({ANTECEDENT.layer}-{ANTECEDENT.head})", 10, _antecedents,
    ),
    "bert-sst2": Row(
        "BERT-base, fine-tuned on SST-2", ("BERT", "SST2"), "accuracy 93.5% on GLUE's test set", 900,
        _fine_tuned("sst2", "SST2", "accuracy"),
    ),
    "bert-mrpc": Row(
        "BERT-base, fine-tuned on MRPC", ("BERT", "MRPC"), "f1 88.9% on GLUE's test set", 90,
        _fine_tuned("mrpc", "MRPC", "f1"),
    ),
    "vit-imagenet": Row("ViT-B/16 on ImageNet", ("VIT", "IMAGENET"), "", 240, _top1("VIT")),
    "deit-imagenet": Row("DeiT-B with both tokens on ImageNet", ("DEIT", "IMAGENET"), "top1 83.4%", 240, _top1("DEIT")),
}  # fmt: skip


def main(arguments: list[str]) -> None:
    given = _directories(arguments)
    chosen = {name: row for name, row in ROWS.items() if {*row.needs} <= {*given}}
    if not chosen:
        table([("row", "needs", "about"), *((name, _words(row.needs), _minutes(row)) for name, row in ROWS.items())])
        return
    results: dict[str, JsonObject] = read_json(RECORD, "delete it") if RECORD.exists() else {}
    for name, row in chosen.items():
        print(f"{name}: {row.shows}, {_minutes(row)}", flush=True)
        begun = time.monotonic()
        found = row.measure(given)
        results[name] = {
            "measured": found, "model": Path(given[row.needs[0]]).resolve().name, "hardware": hardware(),
            "data": [Path(given[key]).resolve().name for key in row.needs[1:]],
            "seconds": round(time.monotonic() - begun, 1),
        }  # fmt: skip
        write_json(RECORD, results)
        print(f"  measured:  {found}\n  published: {row.published or 'no number'}", flush=True)


def published_table() -> str:
    """Return the table of docs/measured/published-weights.md."""
    results: dict[str, JsonObject] = read_json(RECORD, "delete it") if RECORD.exists() else {}
    lines = ["| row | published | measured | needs |", "| --- | --- | --- | --- |"]
    for name, row in ROWS.items():
        found = results.get(name)
        measured = "not measured" if found is None else f"{found['measured']} (`{found['model']}`)"
        lines.append(
            f"| {row.shows} | {row.published or 'no number'} | {measured} | `{_words(row.needs)}`, {_minutes(row)} |"
        )
    return "\n".join(lines)


def keys_table() -> str:
    """Return the table of the directories and files that the command takes."""
    return "\n".join(["| key | path of |", "| --- | --- |", *(f"| `{key}` | {of} |" for key, of in KEYS.items())])


PARTS = (keys_table, published_table)


def _directories(arguments: list[str]) -> dict[str, str]:
    """Return the directories by key, after a check of each. Raises UserError for an unknown key or directory."""
    given: dict[str, str] = {}
    for word in arguments:
        key, equals, path = word.partition("=")
        if key not in KEYS or not equals:
            raise UserError(f"{word}: expected KEY=PATH, with one of the keys {', '.join(KEYS)}")
        if not Path(path).exists():
            raise UserError(f"{key}={path}: no such file or directory; expected {KEYS[key]}")
        if key in MODEL_TYPES:
            found = directory.read_settings(directory.resolve(path))[1].get("model_type")
            if found != MODEL_TYPES[key]:
                raise UserError(f"{word}: expected the model type {MODEL_TYPES[key]!r}, found {found!r}")
        given[key] = path
    return given


def _words(needs: tuple[str, ...]) -> str:
    return " ".join(f"{key}=PATH" for key in needs)


def _minutes(row: Row) -> str:
    return "seconds" if row.minutes < 1 else f"{row.minutes:g} min" if row.minutes < 120 else f"{row.minutes / 60:g} h"


if __name__ == "__main__":
    raise SystemExit(run(main))

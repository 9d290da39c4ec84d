"""`python -m lab.safety_net [NAME ...] [--keep FILE | --compare FILE]`: check that a refactoring changes no training.

Every recipe trains for 20 steps on generated data, once through and once with a stop and a resume between. The script
prints the SHA-256 of the weights and the metrics of each run, and stops at a recipe whose two runs differ. `--keep`
writes the lines to a file; `--compare` compares with such a file of the same machine. NAME selects recipes. Recipes
that train several models or none are left out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from manyheads.errors import UserError
from manyheads.tasks.train import train
from papers.recipes import ALL

STEPS, STOP = 20, 9
TRAINING: dict[str, Any] = {
    "training.steps": STEPS, "training.warmup": 4, "training.validate_every": 10, "training.log_every": 1,
    "training.checkpoint_every": 5, "threads": 1,
}  # fmt: skip
WORDS = "a the good bad film is was not very play of in one two old new small large dog cat runs sees"


def texts(count: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS.split(), int(random.integers(4, 12)))) for _ in range(count)]


def pairs(folder: Path) -> None:
    for seed, (split, count) in enumerate((("train", 400), ("val", 40), ("test_2016_flickr", 40), ("test", 40))):
        lines = texts(count, seed)
        for suffix in ("en", "de", "fr"):
            side = lines if suffix == "en" else [" ".join(reversed(line.split())) for line in lines]
            (folder / f"{split}.{suffix}").write_text("\n".join(side) + "\n", encoding="utf-8")


def labeled(*columns: str) -> Callable[[Path], None]:
    """Return a function that writes texts in `columns` with the label 0 or 1, which says if "good" occurs."""

    def write(folder: Path) -> None:
        for seed, (split, count) in enumerate((("train", 300), ("dev", 60), ("test", 60))):
            sides = [texts(count, 10 * seed + place) for place in range(len(columns))]
            rows = ["\t".join([*row, str(int("good" in row[0]))]) for row in zip(*sides, strict=True)]
            table = "\n".join(["\t".join([*columns, "label"]), *rows]) + "\n"
            (folder / f"{split}.tsv").write_text(table, encoding="utf-8")

    return write


def tagged(folder: Path) -> None:
    for seed, (split, count) in enumerate((("train", 200), ("valid", 40), ("test", 40))):
        sentences = [
            "\n".join(f"{word} {'B-PER' if word in ('dog', 'cat') else 'O'}" for word in text.split())
            for text in texts(count, seed)
        ]
        (folder / f"{split}.txt").write_text("\n\n".join(sentences) + "\n", encoding="utf-8")


def questions(folder: Path) -> None:
    for seed, (split, count) in enumerate((("train", 200), ("dev", 40), ("test", 40))):
        paragraphs = []
        for number, text in enumerate(texts(count, seed)):
            answer = text.split()[number % 4]
            spans = [{"text": answer, "answer_start": text.index(answer)}]
            asked = {"id": f"{split}-{number}", "question": f"where is {answer}", "answers": spans}
            paragraphs.append({"context": text, "qas": [asked]})
        content = {"version": "1.1", "data": [{"title": split, "paragraphs": paragraphs}]}
        (folder / f"{split}.json").write_text(json.dumps(content), encoding="utf-8")


def pictures(size: int, channels: int) -> Callable[[Path], None]:
    """Return a function that writes noisy images of ten classes, in a folder for each class."""

    def write(folder: Path) -> None:
        for seed, (split, count) in enumerate((("train", 20), ("val", 4), ("test", 4))):
            random = np.random.default_rng(seed)
            for label in range(10):
                (folder / split / str(label)).mkdir(parents=True)
                for number in range(count):
                    pixels = random.integers(0, 128, (size, size, channels)) + 12 * label
                    image = Image.fromarray(pixels.astype(np.uint8).squeeze())
                    image.save(folder / split / str(label) / f"{number}.png")

    return write


def running_text(folder: Path) -> None:
    documents = ["\n".join(texts(20, seed)) for seed in range(100)]
    (folder / "input.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")


BERT = {"preset": "bert/tiny", "vocabulary": 200, "length": 32, "batch_tokens": 512}
TRANSLATOR = {"preset": "transformer/tiny", "vocabulary": 200, "batch_tokens": 512, "beam": 1}
BLOG = {"batch_tokens": 256, "model.width": 32, "model.encoder_feed_forward": 64, "model.decoder_feed_forward": 64}
DIGITS = {"size": 300, "longest": 6, "lengths": [6, 12], "batch_tokens": 256}
FINE_TUNED = {"batch_items": 16, "max_length": 32, "truncate": True}
IMAGES = {"batch_items": 16, "workers": 0}
CIFAR = pictures(32, 3)


@dataclass(frozen=True)
class Case:
    """Training of one recipe.

    data   function that writes the data into a folder; None: the recipe's own data
    file   name of the file of the folder that the recipe reads; empty: the folder
    """

    settings: dict[str, Any] = field(default_factory=dict)
    data: Callable[[Path], None] | None = None
    file: str = ""


REVIEWS = labeled("text")
CASES = {
    "bert/pretraining": Case(BERT, running_text),
    "translation": Case({**TRANSLATOR, "size": 1000}),
    "translation/multi30k": Case(TRANSLATOR, pairs),
    "translation/blog": Case(BLOG, pairs),
    "translation/wmt14-base": Case({**TRANSLATOR, "source": "en", "target": "de"}, pairs),
    "translation/wmt14-big": Case({**TRANSLATOR, "source": "en", "target": "de"}, pairs),
    "bert/roberta": Case({**BERT, "vocabulary": 300}, running_text),
    "bert/imdb": Case(BERT, running_text),
    "bert/imdb-1000": Case(FINE_TUNED, REVIEWS),
    "text-classification": Case({"batch_items": 16}),
    **{f"imdb/{name}": Case({"batch_items": 16}, REVIEWS) for name in (
        "textbook", "keras", "corrected", "rnn", "lstm", "gru", "bilstm", "conv1d", "conv2d")},
    "sst2": Case(FINE_TUNED, labeled("sentence")),
    "mrpc": Case(FINE_TUNED, labeled("sentence1", "sentence2")),
    "single-sentence": Case(FINE_TUNED, labeled("text")),
    "sentence-pair": Case(FINE_TUNED, labeled("sentence1", "sentence2")),
    "tagging": Case({"batch_tokens": 512}),
    "conll2003": Case({"batch_tokens": 512}, tagged),
    "question-answering": Case({"batch_tokens": 512}, questions),
    "xquad": Case({"batch_tokens": 512}, questions),
    "language-modeling": Case({"rows": 4, "preset": "gpt2/nano", "block": 32}),
    "language-modeling/tiny-shakespeare": Case({"rows": 4, "block": 32}, running_text, "input.txt"),
    "image-classification": Case(IMAGES),
    "mnist/vit": Case(IMAGES, pictures(28, 1)),
    **{f"cifar10/{name}": Case(IMAGES, CIFAR) for name in (
        "resnet", "vit", "se", "nonlocal", "local-attention", "sknet", "resnest", "gsa", "conv-attention", "deit")},
    "moving-digits": Case({"batch_items": 16}),
    "direction": Case({"batch_items": 16}),
    "pair": Case({"batch_items": 16}),
    **{f"universal/{task}": Case(DIGITS) for task in ("copy", "reverse", "addition")},
}  # fmt: skip


def outcome(recipe: str, case: Case, folder: Path, bert: str, *, stop: bool) -> str:
    """Train a recipe in a folder, and return the hash of its weights and its metrics."""
    settings = {**TRAINING, **case.settings}
    if hasattr(ALL[recipe].config, "data") and case.data is not None:
        settings["data"] = str(folder / "data" / case.file)
    out = folder / ("parts" if stop else "whole")
    if "teacher" in ALL[recipe].requires:
        settings["teacher"] = str(folder.with_name("cifar10-resnet") / "whole")
    start: dict[str, Any] = {"init": bert} if ALL[recipe].init == "must" else {}
    callbacks = [lambda entry: entry["step"] < STOP] if stop else []
    train(recipe, settings, out=out, progress=False, callbacks=callbacks, recipes=ALL, **start)
    if stop:
        train(resume=out, progress=False, recipes=ALL)
    weights = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    metrics = json.loads((out / "result.json").read_text(encoding="utf-8"))["metrics"]
    return f"{weights} {json.dumps({name: metric['value'] for name, metric in metrics.items()})}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.safety_net", description="Check that training is unchanged.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="recipes (default: all)")
    parser.add_argument("--keep", type=Path, help="write the lines to a file")
    parser.add_argument("--compare", type=Path, help="compare with a file that --keep wrote")
    options = parser.parse_args(arguments)
    logging.disable(logging.INFO)
    kept = dict(line.split(" ", 1) for line in options.compare.read_text().splitlines()) if options.compare else {}
    lines, faults = [], 0
    with tempfile.TemporaryDirectory() as temporary:
        bert = str(Path(temporary, "bert", "whole"))
        for recipe in ["bert/pretraining", *options.names] if options.names else CASES:
            folder = Path(temporary, "bert" if recipe == "bert/pretraining" else recipe.replace("/", "-"))
            if (data := CASES[recipe].data) is not None:
                (folder / "data").mkdir(parents=True, exist_ok=True)
                data(folder / "data")
            try:
                whole, parts = (outcome(recipe, CASES[recipe], folder, bert, stop=stop) for stop in (False, True))
            except UserError as error:
                whole, parts = f"error: {error}", ""
            faults += whole != parts or kept.get(recipe, whole) != whole
            lines.append(f"{recipe} {whole}")
            print(lines[-1][:150], "" if whole == parts else f"RESUMED: {parts}",
                  "" if kept.get(recipe, whole) == whole else f"BEFORE: {kept[recipe]}", flush=True)  # fmt: skip
    if options.keep:
        options.keep.write_text("\n".join(lines) + "\n")
    return int(faults > 0)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

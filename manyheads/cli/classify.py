"""`manyheads classify`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from manyheads.cli.lines import answered, one_line
from manyheads.cli.models import model_for
from manyheads.cli.output import document
from manyheads.cli.parser import MODEL, Verbs, positive

if TYPE_CHECKING:
    from manyheads.tasks.classification.predictor import Label


def add(verbs: Verbs) -> None:
    verb = verbs.add("classify", _classify, "tell the labels of texts or images, or of stdin line by line", MODEL,
                     as_json=True)  # fmt: skip
    verb.add_argument("rest", nargs="*", metavar="TEXT|IMAGE", help="none: one line in on stdin (a pair with a tab "
                      "between, or the path of an image), its label and probability out")  # fmt: skip
    verb.add_argument("--pair", metavar="TEXT", help="the second text of the pair")
    verb.add_argument("--top", type=positive(int), default=1, metavar="N",
                      help="the N most probable labels of every text, in one line (default: 1)")  # fmt: skip
    verb.add_argument("--truncate", action="store_true", help="cut texts that are longer than the model takes")


def _classify(options: argparse.Namespace) -> None:
    if options.pair is not None and len(options.rest) != 1:
        raise ValueError("--pair goes with one TEXT; pairs on stdin have a tab between the two")
    classifier = model_for("classify", options.model)
    if classifier.reads == "images":
        return _classify_images(classifier, options)
    documents: list[dict[str, Any]] = []
    paired: list[bool] = []  # whether the first text is a pair, and so all are, however they arrive

    def answers(texts: list[str]) -> list[list[Label]]:
        if not paired and (real := [text for text in texts if text.strip()]):
            paired.append(classifier.takes_pairs and options.pair is None and "\t" in real[0])
        return _answers(classifier, texts, options, any(paired))

    for number, text, labels in answered(options.rest, answers):
        if not labels:
            print(f"manyheads: text {number} is blank: it gets no label", file=sys.stderr)
        if options.json:
            found = [{"label": each.label, "probability": each.probability} for each in labels]
            documents.append({**_given(text, classifier, options), "labels": found})
        else:
            print("\t".join(f"{one_line(each.label)}\t{each.probability:.4f}" for each in labels))
    if options.json:
        document(documents)


def _classify_images(classifier: Any, options: argparse.Namespace) -> None:
    if options.pair is not None or options.truncate:
        raise ValueError("--pair and --truncate are for texts; this model reads images")
    documents: list[dict[str, Any]] = []
    for _, image, labels in answered(options.rest, lambda files: classifier.classify(files, top=options.top)):
        if options.json:
            found = [{"label": each.label, "probability": each.probability} for each in labels]
            documents.append({"image": image, "labels": found})
        else:
            print("\t".join([image, *(f"{one_line(each.label)}\t{each.probability:.4f}" for each in labels)]))
    if options.json:
        document(documents)


def _answers(classifier: Any, texts: list[str], options: argparse.Namespace, paired: bool) -> list[list[Label]]:
    """A tab parts the two texts of a pair, for a model of pairs."""
    pairs = None
    if options.pair is not None:
        pairs = [options.pair]
    elif paired:
        texts, pairs = map(list, zip(*(_parted(text, i) for i, text in enumerate(texts, 1)), strict=True))
    elif classifier.takes_pairs and (late := [i for i, text in enumerate(texts, 1) if "\t" in text]):
        raise ValueError(f"text {late[0]} has a tab, the first one none: give pairs only, or single texts only")
    return classifier.classify(texts, pairs, top=options.top, truncate=options.truncate)


def _given(text: str, classifier: Any, options: argparse.Namespace) -> dict[str, str]:
    if options.pair is not None or not classifier.takes_pairs or "\t" not in text:
        return {"text": text} if options.pair is None else {"text": text, "pair": options.pair}
    return dict(zip(("text", "pair"), _parted(text, 1), strict=True))


def _parted(text: str, number: int) -> tuple[str, str]:
    parts = text.split("\t")
    if text.strip() and len(parts) != 2:
        raise ValueError(f"text {number} has {len(parts) - 1} tabs: expected two texts with one between")
    return parts[0], parts[-1]

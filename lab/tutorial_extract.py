"""`python -m lab.tutorial_extract`: write docs/tutorials/kept_results.json, the kept results that the tutorials show.

The tutorials read the file through docs/tutorials/kept_results.py. A cell names a table or a list of numbers by its
title.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

from lab import results_plot, rivals_page
from lab.colors import BLUE, MODEL_COLORS, VERMILION
from lab.records import matching, records, score_table
from papers.heads.published import ANTECEDENTS

FILE = Path(__file__).parents[1] / "docs" / "tutorials" / "kept_results.json"
DIGITS = 6  # significant digits of a number
Record = dict[str, Any]
Rows = list[dict[str, Any]]


def main() -> None:
    FILE.write_text(written(extract()), encoding="utf-8")


def extract() -> dict[str, dict[str, Any]]:
    """Return the content of the file: the lines of each table, and the rows of each list of numbers."""
    tables = {**texts(), **images(), **others()}
    return {"tables": {title: text.split("\n") for title, text in tables.items()}, "numbers": numbers()}


def written(kept: dict[str, dict[str, Any]]) -> str:
    """Return the file: one line for each line of a table, or for each row of numbers."""
    parts = []
    for kind, entries in kept.items():
        titled = (f"  {_json(title)}: [\n   {_joined(map(_json, rows), 3)}\n  ]" for title, rows in entries.items())
        parts.append(f" {_json(kind)}: {{\n{_joined(titled, 0)}\n }}")
    return "{\n" + _joined(parts, 0) + "\n}\n"


def texts() -> dict[str, str]:
    """Return the tables about models of text, by title."""
    bert, gpt = ("bert/imdb-1000", "init=imdb-bert"), ("single-sentence", "scored=test")
    imdb = {name: matching(f"imdb/{name}", alone=True) for name in _LAYERS}
    bf16 = "precision=bf16"
    multi30k = {
        "English to German": _multi30k("source=en", "target=de"),
        "English to French": _multi30k("source=en", "target=fr", bf16),
        "German to English": _multi30k("source=de", "target=en", bf16),
    }
    blog = {name: matching(name, "source=de", "target=en", bf16, alone=True) for name in _BLOG}
    counts = [f"{name:20}  {found[0]['parameters']:10,} parameters" for name, found in blog.items()]
    layers = {
        "1 layer": _ablation(layers=1), "2 layers": _ablation(layers=2), "3 layers, 4 heads": _ablation(),
        "5 layers": _ablation(layers=5), "1 head": _ablation(heads=1), "2 heads": _ablation(heads=2),
        "8 heads": _ablation(heads=8),
    }  # fmt: skip
    four = dict(
        zip(("RNN", "LSTM", "convolutions", "Transformer"), ("rnn", "lstm", "conv1d", "corrected"), strict=True)
    )
    return {
        "BERT and GPT, tuned on 1,000 film reviews": score_table(
            {
                "BERT, random weights": matching(*bert, "scratch=True", alone=True),
                "BERT, pretrained": matching(*bert, alone=True),
                "GPT, random weights": matching(*gpt, "init=imdb-gpt", "scratch=True"),
                "GPT, pretrained": matching(*gpt, "init=imdb-gpt-long"),
            },
            "accuracy",
        ),
        "seven classifiers of film reviews": score_table({f"imdb/{n}": found for n, found in imdb.items()}, "accuracy"),
        "four classifiers of film reviews": score_table(
            {name: imdb[layer] for name, layer in four.items()}, "loss", "accuracy"
        ),
        "the chapter's model on film reviews": score_table(
            {"imdb/keras": matching("imdb/keras", alone=True)}, "accuracy", "loss"
        ),
        "IMDB reviews of 128 words, with and without learned matrices": score_table(
            {
                "learned matrices": matching("imdb/corrected", "max_length=128"),
                "vectors of the words": matching("imdb/plain-attention", "max_length=128"),
            },
            "loss", "accuracy",
        ),
        "a Transformer on Multi30k": score_table(multi30k, "bleu_13a", "bleu_moses_lc"),
        "the blog's and our Transformer on Multi30k": "\n".join([*counts, score_table(blog, "bleu_13a", "chrf")]),
        "layers and heads of a translator": score_table(layers, "bleu_13a"),
        "ten translators on Multi30k": rivals_page.main_table(),
        "GPT on Shakespeare": score_table(
            {"GPT, Shakespeare": matching("language-modeling/tiny-shakespeare-gpu")}, "loss", "bits_per_byte"
        ),
        "pretraining of a tiny BERT": score_table(
            {"tiny BERT": matching("bert/pretraining", alone=True)}, "accuracy", "next_sentence_accuracy"
        ),
        "MiniLM, tuned on four kinds of tasks": "\n".join(
            score_table(
                {f"{recipe:10}": matching(recipe, "init=all-MiniLM-L6-v2", *settings, alone=True)}, metric
            ) for recipe, metric, *settings in _KINDS
        ),
        "names found by three ways of reading": readings(),
        "heads of MiniLM and of BERT-base": heads(),
    }  # fmt: skip


_LAYERS = ("rnn", "lstm", "conv1d", "conv2d", "textbook", "corrected", "tfidf")
_BLOG = ("translation/blog", "translation/multi30k")
_KINDS = (
    ("mrpc", "f1", "training.epochs=5"), ("sst2", "accuracy"), ("xquad", "squad_f1"),
    ("conll2003", "entity_f1", "training.learning_rate=0.0001"),
)  # fmt: skip


def _multi30k(*settings: str) -> list[Record]:
    return matching("translation/multi30k", *settings, alone=True)


def _ablation(layers: int | None = None, heads: int | None = None) -> list[Record]:
    changed = [f"model.{side}_layers={layers}" for side in ("encoder", "decoder") if layers]
    changed += [f"model.{side}_heads={heads}" for side in ("encoder", "decoder") if heads]
    budget = ("vocabulary=5000", "batch_tokens=2048", "training.steps=1000", "training.warmup=400")
    same = ("data=multi30k", *budget, "model.norm=pre", "model.final_norm=True")
    return matching("translation/ablate", *same, *changed, alone=True)


def images() -> dict[str, str]:
    """Return the tables about models of images, by title."""
    long = ("items=45000", "training.steps=2000", "scored=test")
    short = ("items=10000", "training.epochs=4", "training.warmup=50")
    taught = ("training.epochs=20", "precision=bf16")
    both = {name: matching(f"cifar10/{name}", *long) for name in ("resnet", "vit")}
    clips = {
        "clips, without blocks   ": matching("moving-digits", "model.stages=[]"),
        "clips, with blocks      ": matching("moving-digits", alone=True),
    }
    photos = {
        "CIFAR-10, without blocks": matching("cifar10/resnet", *short, alone=True),
        "CIFAR-10, with blocks": matching("cifar10/nonlocal", *short, alone=True),
    }
    sgd = ("training.optimizer=sgd", "training.learning_rate=0.1", "training.weight_decay=0.0001")
    recipe = {
        "the whole recipe": _deit(),
        "SGD instead of AdamW": _deit(*sgd),
        "no RandAugment": _deit("augmentation.randaugment=0"),
        "no mixup, no cutmix": _deit("augmentation.mixup=0.0", "augmentation.cutmix=0.0"),
        "no erasing": _deit("augmentation.erasing=0.0"),
        "no repeated augmentation": _deit("augmentation.repeats=1"),
    }
    positions = {
        "quadratic: a Gaussian around a learned center": _conv_attention(),
        "relative: learned positions": _conv_attention("conv-attention/relative-small"),
        "content: positions and content (figure 6)": _conv_attention("conv-attention/content-small"),
    }
    return {
        "a ViT on 1,000 to 45,000 images of CIFAR-10": score_table(
            {
                f"{items:6,} images": matching("cifar10/vit", f"items={items}", *long[1:])
                for items in (1000, 5000, 10_000, 45_000)
            },
            "loss", "top1",
        ),
        "a ResNet and a ViT on CIFAR-10": score_table({"ResNet": both["resnet"], "ViT": both["vit"]}, "top1"),
        "a ResNet and a ViT on CIFAR-10, and their sizes": score_table(
            {f"{name}, {found[0]['parameters']:,} parameters": found for name, found in both.items()}, "top1"
        ),
        "non-local blocks on CIFAR-10 and on clips": "\n".join(
            [score_table(photos, "loss", "top1"), score_table(clips, "loss", "accuracy")]
        ),
        "whether two frames show the same digit": score_table(
            {"without blocks": matching("pair", "model.stages=[]"), "with blocks": matching("pair", alone=True)},
            "loss", "accuracy",
        ),
        "squeeze-and-excitation on CIFAR-10": score_table(
            {"ResNet": photos["CIFAR-10, without blocks"],
             "ResNet with squeeze-and-excitation": matching("cifar10/se", *short, alone=True)},
            "loss", "top1",
        ),
        "three kinds of attention to positions": score_table(positions, "loss", "top1"),
        "DeiT's recipe without each of its parts": score_table(recipe, "loss", "top1"),
        "a ViT without and with a teacher": score_table(
            {"ViT, no teacher": matching("cifar10/vit", *taught, alone=True),
             "ViT, probabilities": matching("cifar10/vit", *taught, "teacher=cifar10-teacher", "distillation=soft")},
            "loss", "top1",
        ),
    }  # fmt: skip


def _deit(*settings: str) -> list[Record]:
    return matching("deit/ablate", *settings, alone=True)


def _conv_attention(preset: str | None = None) -> list[Record]:
    six = matching("cifar10/conv-attention", "training.epochs=6")
    return [record for record in six if record["overrides"].get("preset") == preset]


def others() -> dict[str, str]:
    """Return the tables about algorithms and about the recall of words, by title."""
    copied = {
        "two LSTMs": matching("universal/copy", "model=lstm"),
        "Transformer": matching("universal/copy", "model=transformer"),
        "Universal Transformer": matching("universal/copy", alone=True),
    }
    halting = {
        task: matching(f"universal/{task}", "network.halting=basic", "network.steps=6")
        for task in ("copy", "reverse", "addition")
    }
    kinds = [f"recalled_{kind}" for kind in ("rnn", "lstm", "convolution", "attention")]
    influence = matching("text-classification/influence", alone=True)
    return {
        "copying of longer texts": score_table(copied, "accuracy_40", "accuracy_80", "accuracy_400"),
        "steps of a Universal Transformer": score_table(halting, "encoder_steps", "decoder_steps", "accuracy_12"),
        "words that four networks recall": score_table({"recalled": influence}, *kinds),
    }


def readings() -> str:
    """Return F1 of the names that a linear layer finds in three pretrained models, by training steps."""
    lines = ["steps  bidirectional  left to right  two LSTMs"]
    found = sorted((record["overrides"].get("training.steps", 2000), record) for record in matching("reading"))
    for steps, record in found:
        both, left, lstms = (
            record["readings"][name]["entity_f1"] for name in ("bidirectional", "left_to_right", "two_lstms")
        )
        lines.append(f"{steps:5} {both:14.3f} {left:14.3f} {lstms:10.3f}")
    return "\n".join(lines)


_SLIDES = {"det": 22, "dobj": 22, "poss": 23, "auxpass": 23, "pobj": 24}


def _best_heads() -> list[Record]:
    """Return the best head of MiniLM for each relation of slides 22 to 24; coreference is the last row."""
    ewt, gum = records("probes")
    relations = [row for row in ewt["published_relations"] if row["group"] in _SLIDES]
    return [*relations, next(row for row in gum["coreference"] if row["group"] == "all")]


def heads() -> str:
    """Return the accuracy of MiniLM's best heads and of the heads that the paper publishes."""
    lines = ["slide relation      MiniLM  right  fixed   BERT-base  right  fixed"]
    *relations, meant = _best_heads()
    for row in relations:
        paper, name = row["published"], f"{row['layer'] + 1}-{row['head'] + 1}"
        lines.append(
            f"{_SLIDES[row['group']]:5} {row['group']:13} {name:6} {row['accuracy']:6.3f} {row['base']:6.3f}"
            f"   {paper['layer']}-{paper['head']:<7} {paper['accuracy']:6.3f} {paper['base']:6.3f}"
        )
    name = f"{meant['layer'] + 1}-{meant['head'] + 1}"
    lines.append(
        f"{24:5} {'coreference':13} {name:6} {meant['accuracy']:6.3f} {meant['base']:6.3f}"
        f"   5-4       {ANTECEDENTS['all']:6.3f}"
    )
    return "\n".join(lines)


def numbers() -> dict[str, Rows]:
    """Return the rows of plain numbers that cells draw or select from, by title."""
    return {
        "influence and recall by distance": _by_distance(),
        "the chapter's model by epoch": _by_epoch(),
        "translators during their training": _translators(),
        "best heads, slides 22 to 24": [
            {"relation": "coreference" if row["group"] == "all" else row["group"]}
            | {key: row[key] for key in ("layer", "head", "direction")}
            for row in _best_heads()
        ],
        "local attention and convolutions on CIFAR-10": _sizes(),
        "a ResNet and a ViT by number of images": _hunger(),
        "similarity of DeiT's two tokens": [_similarity()],
    }


def _by_distance() -> Rows:
    (record,) = matching("text-classification/influence", alone=True)
    influence, recalled = (
        record["by_distance"][part] for part in ("influence, after it", "share of marked words recalled")
    )
    return [{"name": name, "influence": influence[name], "recalled": recalled[name]} for name in influence]


def _by_epoch() -> Rows:
    rows = []
    for record in (record for record in [*records(), *records("peers")] if record["recipe"] == "imdb/keras"):
        epochs, row = record["by_epoch"], {"name": record.get("peer", "Manyheads")}
        row |= {"color": VERMILION if "peer" in record else BLUE, "epoch": list(range(1, len(epochs) + 1))}
        for split in ("training", "validation"):
            row |= {f"{split} {metric}": [epoch[split][metric] for epoch in epochs] for metric in ("accuracy", "loss")}
        rows.append(row)
    return rows


def _translators() -> Rows:
    rows = []
    timed = rivals_page.timed("fr")
    for name, seeds in rivals_page.curves("fr").items():
        points = list(zip(*seeds, strict=True))  # of each checkpoint, the entries of all seeds
        scores = [[entry[rivals_page.METRIC] for entry in entries] for entries in points]
        row = {
            "name": rivals_page.NAMES[name],
            "color": MODEL_COLORS[name],
            "width": 2.4 if name == "transformer" else 1.4,
        }
        row |= {"10¹² FLOPs": _mean(seeds, "flops", 1e12)}
        row |= {"minutes of one core": _mean(timed[name], "seconds", 60)} if name in timed else {}
        row |= {"BLEU": _rounded(map(mean, scores))}
        rows.append(row | {"lowest": _rounded(map(min, scores)), "highest": _rounded(map(max, scores))})
    return rows


def _mean(seeds: list[rivals_page.Curve], key: str, scale: float) -> list[float]:
    """Return the mean over the seeds of an entry of each checkpoint, divided by `scale`."""
    return _rounded(mean(entry[key] for entry in entries) / scale for entries in zip(*seeds, strict=True))


def _sizes() -> Rows:
    rows = []
    for recipe, points in results_plot.points().items():
        parameters, flops, right, interval = zip(*points, strict=True)
        rows.append({
            "name": recipe, "color": MODEL_COLORS[recipe], "thousand parameters": _rounded(p / 1e3 for p in parameters),
            "million FLOPs for an image": _rounded(f / 1e6 for f in flops), "top-1": _rounded(right),
            "95% interval": _rounded(interval),
        })  # fmt: skip
    return rows


def _hunger() -> Rows:
    rows = []
    for recipe, points in results_plot.hunger().items():
        images, scores = zip(*points, strict=True)
        rows.append({"name": recipe, "color": MODEL_COLORS[recipe], "images": images, "top-1": _rounded(scores)})
    return rows


def _similarity() -> dict[str, Any]:
    found = matching("cifar10/deit", "training.epochs=20", "precision=bf16")[0]["distillation"]["token_similarity"]
    return {**found, "layers": _rounded(found["layers"])}


def _rounded(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _joined(lines: Iterable[str], indent: int) -> str:
    return (",\n" + " " * indent).join(lines)


if __name__ == "__main__":
    main()

"""Compare fine-tuning for a number and for several labels with transformers' Trainer: `python -m lab.targets_peer DIR`.

It writes made-up data and a small random BERT into DIR. From this BERT, both libraries train with the same settings
and three seeds. Each result is scored by both libraries: the directories of one are opened by the other. The scores are
recorded in results/targets.json.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import average_precision_score, f1_score

import manyheads
from manyheads import directory
from manyheads.data.readers.labeled import labels_of
from manyheads.data.sources.corpora import LabeledSource
from manyheads.data.text.tokenizers import train_wordpiece
from manyheads.models.bert import Bert, BertConfig
from manyheads.tasks.evaluation import values

RECORD = Path(__file__).parent / "results" / "targets.json"
# The settings were chosen on other data and other seeds (1 to 3), and not changed for these.
SEEDS, BATCH, WARMUP = (11, 12, 13), 32, 110
COUNTS = {"train": 3000, "dev": 300, "test": 600}
TOPICS, EMOTIONS = 3, 6
WORDS = [a + b + c for a in "bdgklmnprst" for b in "aeiou" for c in ("n", "s", "r", "l")]  # 220 words
KINDS: dict[str, dict[str, Any]] = {
    "number": {
        "recipe": "sentence-pair",
        "target": "regression",
        "problem_type": "regression",
        "epochs": 12,
        "rate": 1e-3,
    },
    "labels": {
        "recipe": "single-sentence",
        "target": "multi-label",
        "problem_type": "multi_label_classification",
        "epochs": 30,
        "rate": 3e-3,
    },
}


def number(draw: random.Random) -> dict[str, Any]:
    """Return two sentences with a score from 0 to 5, like STS-B: the score is the closeness of their topics."""
    topics = [draw.randrange(TOPICS) for _ in range(2)]
    sentences = [[WORDS[TOPICS * draw.randrange(len(WORDS) // TOPICS) + topic] for _ in range(draw.randint(3, 8))]
                 for topic in topics]  # fmt: skip
    score = min(5.0, max(0.0, 5 - 5 * abs(topics[0] - topics[1]) / (TOPICS - 1) + draw.gauss(0, 0.5)))
    return {"sentence1": " ".join(sentences[0]), "sentence2": " ".join(sentences[1]), "label": round(score, 2)}


def labels(draw: random.Random) -> dict[str, Any]:
    """Return a sentence with none to three of six labels, like GoEmotions: rare and frequent ones, some are wrong."""
    weights = [1 / (2 + i) for i in range(EMOTIONS)]
    chosen = set(draw.choices(range(EMOTIONS), weights, k=draw.choice((0, 1, 1, 2, 3))))
    words = [WORDS[4 * emotion + draw.randrange(4)] for emotion in chosen] + draw.choices(WORDS[4 * EMOTIONS :], k=2)
    draw.shuffle(words)
    if draw.random() < 0.05:
        chosen = {draw.randrange(EMOTIONS)}
    return {"text": " ".join(words), "label": [f"emotion-{emotion:02}" for emotion in sorted(chosen)]}


def prepare(folder: Path) -> None:
    texts = []
    for name, make in (("number", number), ("labels", labels)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for at, (split, count) in enumerate(COUNTS.items()):
            rows = [make(random.Random(f"{name} second {at} {i}")) for i in range(count)]
            (folder / name / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            texts += [row.get("text") or row["sentence1"] for row in rows]
    tokenizer = train_wordpiece(texts, 400)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"width": 64, "layers": 2, "heads": 4, "feed_forward": 128, "max_positions": 64}
    bert = Bert(BertConfig(vocab=tokenizer.get_vocab_size(), head="masked_lm", **sizes))
    with torch.no_grad():  # without pretraining, larger embeddings make the training shorter
        bert.embedding.weight *= 5
    directory.save(folder / "bert", bert, tokenizer)


def train_ours(folder: Path, name: str, seed: int) -> Path:
    kind, out = KINDS[name], folder / f"ours-{name}-{seed}"
    settings = {
        "data": str(folder / name), "target": kind["target"], "batch_items": BATCH, "training.epochs": kind["epochs"],
        "training.learning_rate": kind["rate"], "training.warmup": WARMUP, "training.seed": seed, "threads": 1,
    }  # fmt: skip
    manyheads.train(kind["recipe"], settings, out=str(out), init=str(folder / "bert"))
    return out


def rows_of(folder: Path, name: str, split: str, names: tuple[str, ...]) -> tuple[list[Any], np.ndarray[Any, Any]]:
    """Return the texts or pairs of a split, and the truth (N, 1) or (N, L)."""
    lines = [json.loads(line) for line in (folder / name / f"{split}.jsonl").read_text().splitlines()]
    if name == "number":
        return [(r["sentence1"], r["sentence2"]) for r in lines], np.array([[r["label"]] for r in lines], np.float32)
    return [r["text"] for r in lines], np.array([[float(n in r["label"]) for n in names] for r in lines], np.float32)


def train_theirs(folder: Path, name: str, seed: int, names: tuple[str, ...]) -> Path:
    out, kind = folder / f"theirs-{name}-{seed}", KINDS[name]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "bert")
    texts, truth = rows_of(folder, name, "train", names)
    data = [
        {**tokenizer(*(t if name == "number" else [t])), "labels": row} for t, row in zip(texts, truth, strict=True)
    ]
    transformers.set_seed(seed)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder / "bert", num_labels=len(names), problem_type=kind["problem_type"],
        id2label=dict(enumerate(names)), label2id={label: i for i, label in enumerate(names)},
    )  # fmt: skip
    arguments = transformers.TrainingArguments(
        str(out), seed=seed, per_device_train_batch_size=BATCH, num_train_epochs=kind["epochs"],
        learning_rate=kind["rate"],
        warmup_steps=WARMUP, weight_decay=0.01, adam_epsilon=1e-6, max_grad_norm=1.0, lr_scheduler_type="linear",
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    collator = transformers.DataCollatorWithPadding(tokenizer)
    transformers.Trainer(model, arguments, train_dataset=data, data_collator=collator).train()
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


@torch.inference_mode()
def score_in_transformers(run: Path, folder: Path, name: str, names: tuple[str, ...]) -> dict[str, float]:
    """Return the scores of a directory on the test data, computed by transformers, SciPy and scikit-learn."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(run).eval()
    assert model.config.problem_type == KINDS[name]["problem_type"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(run)
    texts, truth = rows_of(folder, name, "test", names)
    logits = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits.numpy()
    if name == "number":
        found, expected = logits[:, 0], truth[:, 0]
        mse = float(np.mean((found - expected) ** 2))
        pearson, spearman = pearsonr(found, expected).statistic, spearmanr(found, expected).statistic
        return {"mse": mse, "pearson": float(pearson), "spearman": float(spearman)}
    occurring = truth.any(0)
    return {
        "micro_f1": f1_score(truth, logits > 0, average="micro"),
        "macro_f1": f1_score(truth, logits > 0, average="macro", zero_division=0),
        "map": average_precision_score(truth[:, occurring], logits[:, occurring], average="macro"),
    }


def score_in_manyheads(run: Path, folder: Path, name: str) -> dict[str, float]:
    return values(manyheads.load(str(run)).outcome(str(folder / name)).metrics)


def main(folder: Path) -> None:
    prepare(folder)
    record: dict[str, Any] = {
        "settings": {**KINDS, "batch": BATCH, "warmup": WARMUP, "items": COUNTS},
        "transformers": transformers.__version__, "runs": [],
    }  # fmt: skip
    for name, kind in KINDS.items():
        train = LabeledSource(data=str(folder / name), target=kind["target"]).read().train
        names = labels_of(train.labels, train.target)
        for seed in SEEDS:
            runs = {
                "manyheads": train_ours(folder, name, seed),
                "transformers": train_theirs(folder, name, seed, names),
            }
            for library, run in runs.items():
                theirs = score_in_transformers(run, folder, name, names)
                ours = score_in_manyheads(run, folder, name)
                difference = max(abs(ours[metric] - value) for metric, value in theirs.items())
                scores = {metric: round(value, 4) for metric, value in theirs.items()}
                entry = {"target": kind["target"], "trained_by": library, "seed": seed, "scores": scores}
                record["runs"].append({**entry, "max_difference_between_scorers": float(f"{difference:.1g}")})
                print(record["runs"][-1], flush=True)
                RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Compare training of embeddings with sentence-transformers: `python -m lab.embeddings_peer MODEL MRPC DIR`.

MODEL is a BERT, such as all-MiniLM-L6-v2, and MRPC is a directory with train.tsv and test.tsv. DIR gets the models.

Plan. The first two layers of MODEL are trained on the MRPC pairs with equal meaning (label 1), here and by the Trainer
of sentence-transformers with MultipleNegativesRankingLoss. Both use batches of 32 pairs, two epochs, a linear schedule
from 2e-5, AdamW, one thread, mean pooling, scale 20, the last weights, and three seeds. The metric is the mean
reciprocal rank (MRR) of the second text among all second texts of the test pairs. Manyheads measures it for both
directories. The vectors of our directories in sentence-transformers are compared with ours, too.

Bar. The mean MRR differs by at most 0.01, or by at most twice the standard error of the difference if this is more. The
training speed, in pairs per second without loading and without the evaluation, is at least equal (ratio 1.0). A cosine
of the vectors is at least 1 - 1e-6.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from datasets import Dataset  # type: ignore[import-untyped]
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

import manyheads
from manyheads import directory
from manyheads.models.bert import Bert
from manyheads.tasks.evaluation import values

SEEDS, BATCH, EPOCHS, RATE, LAYERS, MAX_LENGTH = (11, 12, 13), 32, 2, 2e-5, 2, 128
VALIDATION_PAIRS = 50


def pairs_of(mrpc: Path, split: str) -> list[tuple[str, str]]:
    """Return the pairs of texts with equal meaning."""
    with (mrpc / f"{split}.tsv").open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["sentence1"], row["sentence2"]) for row in rows if row["label"] == "1"]


def first_layers(model: str, out: Path) -> None:
    """Write the first layers of a BERT, without its head."""
    loaded = directory.load(model)
    config = replace(loaded.model.config, layers=LAYERS, head="none")
    shallow = Bert(config)
    weights = loaded.model.state_dict()
    shallow.load_state_dict({name: weights[name] for name in shallow.state_dict()})
    directory.save(out, shallow, loaded.tokenizer)


def train_ours(init: Path, pairs: list[tuple[str, str]], out: Path, seed: int) -> float:
    """Train here. Return the number of training pairs per second."""
    settings = {
        "batch_items": BATCH, "max_length": MAX_LENGTH, "truncate": True, "threads": 1, "training.epochs": EPOCHS,
        "training.learning_rate": RATE, "training.warmup": 0, "training.seed": seed, "training.metric": None,
        "training.validate_every": 10_000, "training.checkpoint_every": 10_000,
    }  # fmt: skip
    result = manyheads.train(
        "embedding", settings, out=out, init=str(init), train=pairs, validation=pairs[:VALIDATION_PAIRS], progress=False
    )
    return len(pairs) * EPOCHS / float(result["wall_seconds"])


def train_theirs(init: Path, pairs: list[tuple[str, str]], out: Path, seed: int) -> float:
    """Train with sentence-transformers. Return the number of training pairs per second."""
    torch.set_num_threads(1)
    encoder = Transformer(str(init), max_seq_length=MAX_LENGTH)
    model = SentenceTransformer(
        modules=[encoder, Pooling(encoder.get_embedding_dimension()), Normalize()], device="cpu"
    )
    arguments = SentenceTransformerTrainingArguments(
        str(out), seed=seed, per_device_train_batch_size=BATCH, num_train_epochs=EPOCHS, learning_rate=RATE,
        weight_decay=0.01, adam_epsilon=1e-6, max_grad_norm=1.0, lr_scheduler_type="linear", use_cpu=True,
        save_strategy="no", report_to=[], disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    data = Dataset.from_dict({"anchor": [a for a, _ in pairs], "positive": [b for _, b in pairs]})
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=MultipleNegativesRankingLoss(model))
    seconds = trainer.train().metrics["train_runtime"]
    model.save_pretrained(str(out))
    return len(pairs) * EPOCHS / float(seconds)


def least_cosine(run: Path, texts: list[str]) -> float:
    """Return the smallest cosine of our vectors and those of sentence-transformers for one directory."""
    ours = np.stack([found.vector for found in manyheads.load(run).embed(texts, truncate=True)])
    theirs = SentenceTransformer(str(run), device="cpu").encode(texts)
    return float((ours * theirs).sum(1).min())


def main(model: str, mrpc: str, out: str) -> None:
    folder = Path(out)
    first_layers(model, folder / "bert")
    train, test = (pairs_of(Path(mrpc), split) for split in ("train", "test"))
    found: dict[str, list[dict[str, Any]]] = {"ours": [], "theirs": []}
    start = values(manyheads.load(folder / "bert").evaluate(test, truncate=True).metrics)
    print(json.dumps({"side": "before training", **start}), flush=True)
    for seed in SEEDS:
        for side, trained in (("ours", train_ours), ("theirs", train_theirs)):
            run = folder / f"{side}-{seed}"
            speed = trained(folder / "bert", train, run, seed)
            scores = values(manyheads.load(run).evaluate(test, truncate=True).metrics)
            found[side].append({"seed": seed, "pairs_per_second": round(speed, 1), **scores})
            print(json.dumps({"side": side, **found[side][-1]}), flush=True)
    mrr = {side: [row["mrr"] for row in rows] for side, rows in found.items()}
    error = math.sqrt(sum(stdev(numbers) ** 2 / len(numbers) for numbers in mrr.values()))
    difference = mean(mrr["ours"]) - mean(mrr["theirs"])
    speed = mean(a["pairs_per_second"] / b["pairs_per_second"] for a, b in zip(*found.values(), strict=True))
    cosine = least_cosine(folder / f"ours-{SEEDS[0]}", [text for text, _ in test[:200]])
    met = abs(difference) <= max(0.01, 2 * error) and speed >= 1 and cosine >= 1 - 1e-6
    print(json.dumps({"mrr_difference": difference, "standard_error": error, "speed": speed, "cosine": cosine}))
    print("bar met" if met else "bar missed")


if __name__ == "__main__":
    main(*sys.argv[1:])

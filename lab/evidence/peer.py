"""Fine-tune transformers' model in a plain PyTorch loop, for comparison: `python -m lab.evidence.peer`.

It takes the arguments of `manyheads train` for sst2, mrpc and conll2003, and uses the same data, splits, order of
batches and learning rates. Tokens, model, head, dropout, loss and schedule are those of transformers; AdamW is
PyTorch's. Its result.json is recorded in peers/. Every CHECKPOINT steps it saves its state; --resume continues.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from manyheads import cli
from manyheads.core.runtime import prepare
from manyheads.data.batching import token_batches
from manyheads.data.readers.labeled import label_order
from manyheads.data.sources.corpora import LabeledSource, TaggedSource
from manyheads.files import replacing, write_json
from manyheads.runs.overrides import apply, from_arguments
from manyheads.tasks.classification.recipes import ClassificationConfig
from manyheads.tasks.evaluation import values
from manyheads.tasks.label_metrics import classification_metrics
from manyheads.tasks.registry import find
from manyheads.tasks.tagging.metrics import tagging_metrics
from manyheads.training.record import Metrics, hardware

CHECKPOINT = 200  # steps
IGNORED = -100


class Peer:
    """A kind of task: its data, and its model in transformers."""

    def __init__(self, config: Any, init: str) -> None:
        self.config, seed = config, config.training.seed
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(init)
        self.by_text = isinstance(config, ClassificationConfig)
        where = {"data": config.data, "validation": config.validation, "test": config.test, "seed": seed}
        if self.by_text:
            splits: Any = LabeledSource(**where, names=config.names, columns=config.columns, sample=config.items).read()
            self.labels = config.names or label_order(splits.train.labels)
        else:
            splits = TaggedSource(**where).read()
            self.labels = splits.train.labels
        self.splits = splits
        index = {label: number for number, label in enumerate(self.labels)}
        self.encoded = {name: self._encoded(split, index) for name, split in splits.known.items()}
        kind = "AutoModelForSequenceClassification" if self.by_text else "AutoModelForTokenClassification"
        torch.manual_seed(seed)  # of the new head, and of dropout
        self.model = getattr(transformers, kind).from_pretrained(init, num_labels=len(self.labels))

    def _encoded(self, split: Any, index: dict[str, int]) -> list[dict[str, Any]]:
        """Of each item what the model reads, with its label or its tokens' labels."""
        limit = {"truncation": True, "max_length": self.config.max_length}
        if self.by_text:
            batch = self.tokenizer(split.texts, split.second_texts, **limit)
            return [{**{key: batch[key][i] for key in batch}, "labels": index[label]}
                    for i, label in enumerate(split.labels)]  # fmt: skip
        batch = self.tokenizer(split.words, is_split_into_words=True, **limit)
        rows = []
        for i, tags in enumerate(split.tags):
            words, labels, last = batch.word_ids(i), list[int](), None
            for word in words:
                labels.append(IGNORED if word is None or word == last else index[tags[word]])
                last = word
            rows.append({**{key: batch[key][i] for key in batch}, "labels": labels})
        return rows

    def batches(self, epoch: int) -> list[Any]:
        """As ours has them."""
        lengths, c = [len(row["input_ids"]) for row in self.encoded["train"]], self.config
        most = getattr(c, "batch_items", None)
        return token_batches(
            lengths, lengths, c.batch_tokens, seed=c.training.seed, epoch=epoch, max_sentences=most
        )  # fmt: skip

    def tensors(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)

        def padded(key: str, filling: int) -> Tensor:
            return torch.tensor([row[key] + [filling] * (longest - len(row[key])) for row in rows])

        fillings = {"input_ids": self.tokenizer.pad_token_id, "attention_mask": 0, "token_type_ids": 0}
        inputs = {key: padded(key, filling) for key, filling in fillings.items() if key in rows[0]}
        labels = torch.tensor([row["labels"] for row in rows]) if self.by_text else padded("labels", IGNORED)
        return {**inputs, "labels": labels}

    @torch.inference_mode()
    def score(self, split: str) -> Metrics:
        self.model.eval()
        truth, rows = getattr(self.splits, split), self.encoded[split]
        guesses: list[Any] = []
        for first in range(0, len(rows), 64):
            batch = self.tensors(rows[first : first + 64])
            best = self.model(**batch).logits.argmax(-1)
            guesses += best.tolist() if self.by_text else [
                [self.labels[guess] for guess, label in zip(*pair, strict=True) if label != IGNORED]
                for pair in zip(best.tolist(), batch["labels"].tolist(), strict=True)
            ]  # fmt: skip
        self.model.train()
        if self.by_text:
            return classification_metrics(guesses, [self.labels.index(label) for label in truth.labels], self.labels)
        # words that were cut off are tagged as none
        whole_sentences = [
            tags + ["O"] * (len(right) - len(tags)) for tags, right in zip(guesses, truth.tags, strict=True)
        ]
        return tagging_metrics(whole_sentences, truth.tags)


def train(peer: Peer, out: Path) -> float:
    """The plain loop; returns its seconds."""
    c, model, started = peer.config.training, peer.model.train(), time.monotonic()
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": c.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=c.learning_rate, betas=c.betas, eps=c.eps)
    last = min(filter(None, (c.epochs * len(peer.batches(0)), c.steps)))
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, c.warmup, last)
    state, file, step, before = [model, optimizer, schedule], out / "state.pt", 0, 0.0
    if file.exists():
        saved = torch.load(file, weights_only=True)
        step, before = saved["step"], saved["seconds"]
        for part, values_of in zip(state, saved["parts"], strict=True):
            part.load_state_dict(values_of)
        torch.set_rng_state(saved["random"])
        print(f"resuming after step {step}", file=sys.stderr)
    done = 0
    for epoch in range(c.epochs):
        for rows in peer.batches(epoch):
            done += 1
            if done <= step or done > last:
                continue
            optimizer.zero_grad()
            loss = model(**peer.tensors([peer.encoded["train"][i] for i in rows])).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), c.clip)
            optimizer.step()
            schedule.step()
            if done % CHECKPOINT == 0:
                seconds = before + time.monotonic() - started
                print(f"step {done:,} of {last:,}  loss {loss.item():.4f}", file=sys.stderr, flush=True)
                parts = [part.state_dict() for part in state]
                random = torch.get_rng_state()
                with replacing(file) as fresh:
                    torch.save({"step": done, "seconds": seconds, "parts": parts, "random": random}, fresh)
                write_json(out / "step.json", {"step": done, "last": last})
    return before + time.monotonic() - started


def main(words: Sequence[str] | None = None) -> int:
    options = cli._parse(["train", *(sys.argv[1:] if words is None else words)])
    config = apply(find(options.recipe).starting_config(options.init), from_arguments(options.rest))
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    compute = prepare("float32", config.threads)
    with compute.settings():
        peer = Peer(config, options.init)
        seconds = train(peer, out)
        metrics = peer.score("test")
        print(json.dumps(values(metrics)), file=sys.stderr)
        write_json(out / "result.json", {
            "recipe": options.recipe, "peer": f"transformers {transformers.__version__}",
            "how": "its model, head, dropout and schedule, PyTorch's AdamW, in a plain loop: the same data, splits, "
                   "batches and rates",
            "init": options.init, "metrics": metrics, "wall_seconds": round(seconds, 1),
            "parameters": sum(p.numel() for p in peer.model.parameters()), "hardware": hardware(),
            "seed": config.training.seed,
        })  # fmt: skip
    return 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    raise SystemExit(main())

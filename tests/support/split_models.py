"""Tiny GPT, BERT and Transformer, trained alone or as one rank of several processes.

    python -m tests.support.split_models OUT PARALLEL STEPS DROPOUT CHECKPOINTING

PARALLEL is "-", "tensor=N" or "shard,tensor=N". The environment has the variables of `torchrun`. `OUT/NAME` is the
directory of each run; the run continues if it exists.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from manyheads.core.runtime import ComputeConfig
from manyheads.data.batching import Lazy
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.models.transformer import Transformer, TransformerConfig
from manyheads.training.config import TrainingConfig
from manyheads.training.distributed import distributed_context
from manyheads.training.distributed_map import distributed_map
from manyheads.training.loop import train
from manyheads.training.loss import smoothed_cross_entropy
from manyheads.training.objective import Better, Loss
from manyheads.training.state import as_sharded
from tests.paths import ROOT

NAMES = ("gpt", "bert", "transformer")
VOCAB, PAD = 13, 0  # no degree of the tests divides the vocabulary
SIDE = {"layers": 1, "heads": 4, "feed_forward": 12}  # sizes of the encoder and of the decoder
COMPUTE = ComputeConfig("cpu", "float32", 1, "highest", compiled=False)


@dataclass
class Rows:
    tokens: Tensor  # (B, T)

    @property
    def items(self) -> int:
        return int((self.tokens[:, 1:] != PAD).sum())


def build(name: str, dropout: float) -> nn.Module:
    torch.manual_seed(3)
    size: dict[str, Any] = {"width": 8, "max_positions": 16, "dropout": dropout, "attention_dropout": dropout}
    if name == "gpt":
        return GPT(GPTConfig(VOCAB, **size, layers=2, heads=4, embedding_dropout=dropout))
    if name == "bert":
        return Bert(BertConfig(VOCAB, **size, layers=1, heads=4, feed_forward=12, head="masked_lm"))
    size |= {f"{side}_{key}": n for side in ("encoder", "decoder") for key, n in SIDE.items()}
    config = TransformerConfig(
        VOCAB, VOCAB, PAD, 1, 2, **size, key_width=3, output_bias=True, activation_dropout=dropout
    )
    return Transformer(config)


class Task:
    unit = "tokens"
    metrics: ClassVar[Mapping[str, Better]] = {"loss": "lower"}

    def __init__(self, name: str, dropout: float) -> None:
        self.model: Any = build(name, dropout)

    def batches(self, epoch: int) -> Sequence[Rows]:
        rows = np.random.default_rng((5, epoch)).permutation(15)
        return Lazy([rows[i : i + 5] for i in range(0, 15, 5)], self._rows)

    def _rows(self, rows: Any) -> Rows:
        drawn = [np.random.default_rng((6, int(row))) for row in rows]
        tokens = np.stack([np.pad(r.integers(1, VOCAB, n := int(r.integers(3, 9))), (0, 9 - n)) for r in drawn])
        return Rows(torch.from_numpy(tokens))

    def _hidden(self, tokens: Tensor) -> Tensor:
        if isinstance(self.model, Transformer):
            return self.model.hidden(tokens[:, 1:], None, tokens[:, :-1])
        if isinstance(self.model, Bert):
            return self.model.transform_states(self.model.encode(tokens[:, :-1]))
        return self.model.hidden(tokens[:, :-1])

    def loss(self, batch: Rows) -> Loss:
        total = smoothed_cross_entropy(
            self._hidden(batch.tokens).flatten(0, 1), self.model.output_weight, self.model.output_bias,
            batch.tokens[:, 1:].flatten(), smoothing=0.1, pad=PAD,
        )  # fmt: skip
        return Loss(total, batch.items)

    def validate(self) -> dict[str, float]:
        def mean(row: int) -> float:
            tokens = self._rows([row]).tokens
            logits = self.model.projection(self._hidden(tokens), self.model)
            return float(F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], ignore_index=PAD))

        return {"loss": float(np.mean([*distributed_map([20, 21, 22], mean)]))}

    def save(self, directory: Path) -> str:
        directory.mkdir(parents=True, exist_ok=True)
        save_file({n: p.detach().clone() for n, p in self.model.named_parameters()}, directory / "model.safetensors")
        return "tiny"


def train_all(out: Path, parallel: str, steps: int, dropout: float, *, checkpointing: bool = False) -> None:
    for name in NAMES:
        task = Task(name, dropout)
        config = TrainingConfig(
            steps=steps, optimizer="sgd", schedule="constant", learning_rate=0.1, warmup=0, log_every=1, clip=0.5,
            checkpoint_every=2, checkpointing=checkpointing,
            shard=parallel.startswith("shard"), tensor_parallel=int(parallel.partition("tensor=")[2] or 1),
        )  # fmt: skip
        train(task, config, out / name, compute=COMPUTE, resume=(out / name).exists())
        check_ranks(task.model)


def check_ranks(model: nn.Module) -> None:
    """Check that parameters that are not split are equal on all ranks."""
    whole = {n: p.detach() for n, p in model.named_parameters() if as_sharded(p) is None}
    for of_rank in distributed_context().all_gather(whole):
        assert all(torch.equal(of_rank[name], whole[name]) for name in whole)


def launch(world: int, out: Path, parallel: str, steps: int, dropout: float, *, checkpointing: bool = False) -> None:
    """Call `train_all` in `world` processes."""
    with socket.create_server(("localhost", 0)) as free:
        port = str(free.getsockname()[1])
    values = {"WORLD_SIZE": str(world), "MASTER_ADDR": "localhost", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    given = map(str, (out, parallel, steps, dropout, "checkpointing" * checkpointing))
    command = [sys.executable, "-m", "tests.support.split_models", *given]
    ranks = [
        subprocess.Popen(
            command, cwd=ROOT, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **values, "PYTHONPATH": str(ROOT), "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(world)
    ]  # fmt: skip
    errors = [process.communicate(timeout=600)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0] * world, errors


def log(out: Path, name: str) -> list[tuple[float, ...]]:
    """Losses and gradient norms, and validation losses, of a run."""
    entries = [json.loads(line) for line in (out / name / "metrics.jsonl").read_text().splitlines()]
    return [
        (e["loss"], e["gradient_norm"]) if "loss" in e else (e["validation"]["loss"],)
        for e in entries
        if "loss" in e or "validation" in e
    ]


def tensors(out: Path, name: str, steps: int) -> dict[str, Tensor]:
    """Tensors of the last checkpoint, which has equal names and shapes for any number of processes."""
    return load_file(out / name / f"state/checkpoint-{steps:08d}.safetensors")


def assert_equal_runs(found: Path, expected: Path, steps: int) -> None:
    for name in NAMES:
        assert len(log(expected, name)) >= steps
        for one, other in zip(log(found, name), log(expected, name), strict=True):
            assert one == pytest.approx(other, rel=1e-5)
        ours, theirs = tensors(found, name, steps), tensors(expected, name, steps)
        assert ours.keys() == theirs.keys()
        for key, tensor in theirs.items():
            if not key.startswith("rng."):
                torch.testing.assert_close(ours[key], tensor, rtol=1e-5, atol=1e-6, msg=f"{name}: {key}")


if __name__ == "__main__":
    given = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    train_all(*given, checkpointing=bool(sys.argv[5]))

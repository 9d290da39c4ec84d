"""The text classifier whose queries, keys and values are the vectors of the words."""

from pathlib import Path

import torch

import manyheads
from manyheads.core.attention import Attention
from manyheads.tasks.train import train
from papers.recipes import RECIPES


def test_the_matrices_stay_identities_and_the_rest_is_trained(tmp_path: Path) -> None:
    rows = [f"{label}\ta {word} film" for word, label in (("good", "positive"), ("bad", "negative")) for _ in range(8)]
    for split in ("train", "val", "test"):
        (tmp_path / f"{split}.tsv").write_text("\n".join(["label\ttext", *rows]) + "\n")
    settings = {"data": str(tmp_path), "training.epochs": 1, "max_length": 8, "threads": 1}
    train("imdb/plain-attention", settings, out=tmp_path / "run", recipes=RECIPES)
    model = manyheads.load(tmp_path / "run").model
    (attention,) = [layer for layer in model.modules() if isinstance(layer, Attention)]
    for projection in (attention.query, attention.key, attention.value):
        assert torch.equal(projection.weight, torch.eye(32).repeat(2, 1))
        assert not projection.bias.any()
    assert attention.output.bias.any()

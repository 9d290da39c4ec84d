"""Mean of the weights of several models, such as the last checkpoints of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from manyheads.directory import check_free, load
from manyheads.errors import UserError


def average(models: Sequence[str | Path], out: str | Path) -> str:
    """Write the mean of the weights of several model directories to `out`, a new directory. Return the model type.

    Vaswani 2017, section 6.1, averages the last checkpoints of a run. Counters and other integers are those of the last
    model. Raises UserError for models that differ in their settings or tokenizers.
    """
    check_free(Path(out))
    if len(models) < 2:
        raise UserError(f"expected two or more models, found {len(models)}")
    first = load(models[0])
    sums = {name: tensor.double() for name, tensor in first.model.state_dict().items()}
    words = first.tokenizer and first.tokenizer.to_str()
    for path in models[1:]:
        loaded = load(path)
        if loaded.model.config != first.model.config or (loaded.tokenizer and loaded.tokenizer.to_str()) != words:
            raise UserError(f"{path}: its settings or its tokenizer differ from those of {models[0]}")
        for name, tensor in loaded.model.state_dict().items():
            sums[name] = sums[name] + tensor.double() if tensor.is_floating_point() else tensor
    mean = {n: (s / len(models)).float() if s.dtype == torch.float64 else s for n, s in sums.items()}
    first.model.load_state_dict(mean)
    return first.save(out)

"""Mean of the weights of several models, such as the last checkpoints of a training run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from manyheads.directory import Loaded, load
from manyheads.errors import UserError
from manyheads.files import JsonObject, check_free
from manyheads.training.run_directory import KEPT, run_record


def average(models: Sequence[str | Path], out: str | Path) -> str:
    """Write the mean of the weights of several model directories to `out`, a new directory. Return the model type.

    Vaswani 2017, section 6.1, averages the last checkpoints of a run. Counters and other integers are taken from the
    last model. Raises UserError for models that differ in their settings, tokenizers or languages.
    """
    check_free(Path(out))
    if len(models) < 2:
        raise UserError(f"expected two or more models, found {len(models)}")
    first = load(models[0])
    sums = {name: tensor.double() for name, tensor in first.model.state_dict().items()}
    inputs, languages, seed = _inputs(first), _languages(first.path), _seed(first.path)
    for path in models[1:]:
        loaded = load(path)
        if loaded.model.config != first.model.config or _inputs(loaded) != inputs:
            raise UserError(f"{path}: its settings or its tokenizer differ from those of {models[0]}")
        if (other := _languages(loaded.path)) and languages and other != languages:
            raise UserError(
                f"{path} translates from {' to '.join(other)}, but {models[0]} from {' to '.join(languages)}: expected"
                " checkpoints of one run"
            )
        if seed is not None and (other_seed := _seed(loaded.path)) not in (None, seed):
            raise UserError(
                f"{path} began with other random weights than {models[0]} (seeds {other_seed} and {seed}), so"
                " the mean is no model: expected checkpoints of one run. Combine translators with --ensemble"
            )
        for name, tensor in loaded.model.state_dict().items():
            sums[name] = sums[name] + tensor.double() if tensor.is_floating_point() else tensor
    mean = {n: (s / len(models)).float() if s.dtype == torch.float64 else s for n, s in sums.items()}
    first.model.load_state_dict(mean)
    return first.save(out)


def _inputs(loaded: Loaded) -> tuple[object, ...]:
    tokenizers = (loaded.tokenizer, loaded.target_tokenizer)
    return *(tokenizer and tokenizer.to_str() for tokenizer in tokenizers), loaded.preprocessing


def _record(path: Path) -> JsonObject:
    """Return the record of the run that trained a model (its result.json); empty for other models.

    path  directory of the run, or of a model that the run has saved during training
    """
    records = [run_record(path), run_record(path.parent.parent) if path.parent.name == KEPT else {}]
    return next((record for record in records if record.get("data")), {})


def _seed(path: Path) -> int | None:
    """Return the seed of a model that was trained from random weights; None for other models."""
    record = _record(path)
    return None if record.get("init") else record.get("seed")


def _languages(path: Path) -> tuple[str, ...]:
    """Return the source and target language of a translator from the record of its run; empty if they are unknown."""
    data = _record(path).get("data", {})
    return tuple(str(data[side]) for side in ("source", "target") if data.get(side))

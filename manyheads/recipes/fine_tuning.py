"""Starting from BERT's weights: the encoder stays, the head is that of the task."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Literal

from tokenizers import Tokenizer

from manyheads import directory
from manyheads.models.adapt import adapt
from manyheads.models.bert import Bert, Head
from manyheads.models.bert_features import BertFeatures, BertFeaturesConfig
from manyheads.recipes.run import Run
from manyheads.training.config import TrainingConfig

Tuned = Literal["all", "last", "last-four"]
READ = {"last": 1, "last-four": 4}  # layers that a BiLSTM reads
READING_RATE = 1e-3


def starting_from(
    run: Run, head: Head, labels: tuple[str, ...] = (), dropouts: Mapping[str, float] | None = None
) -> tuple[Bert, Tokenizer]:
    """The model of `--init` under a new head, with its tokenizer; what is new is told on stderr.

    dropouts  the recipe's own; the user's settings come before them

    Raises ValueError where the model is no BERT or has no tokenizer, and where a setting is the model's own.
    """
    assert run.init is not None
    settings = {**(dropouts or {}), **rates(run)}
    loaded = directory.load(run.init)
    if not isinstance(loaded.model, Bert):
        raise ValueError(f"{run.init}: a {loaded.family} model; {run.recipe} starts from BERT's weights")
    if loaded.tokenizer is None:
        raise ValueError(f"{run.init} has no tokenizer.json, so training cannot continue from it")
    model, new = adapt(loaded.model, head=head, labels=labels, **settings)
    kept = len(model.state_dict()) - len(new)
    print(f"starting from {run.init}: {kept} tensors are its own, new: {', '.join(new) or 'none'}", file=sys.stderr)
    return model, loaded.tokenizer


def with_reader(
    run: Run,
    head: Head,
    labels: tuple[str, ...],
    tuned: Tuned,
    *,
    scratch: bool = False,
    dropouts: Mapping[str, float] | None = None,
) -> tuple[Bert | BertFeatures, Tokenizer]:
    """The model of `--init` under a new head and tuned as a whole; or frozen, under a BiLSTM that reads its layers.

    scratch   with new weights all the same
    dropouts  the recipe's own; the user's settings come before them
    """
    if tuned == "all":
        model, tokenizer = starting_from(run, head, labels, dropouts)
        return (Bert(model.config) if scratch else model), tokenizer
    bert, tokenizer = starting_from(run, "none", dropouts=dropouts)
    own = {**asdict(bert.config), "head": head, "labels": labels, "read": READ[tuned], "hidden": bert.config.width}
    reader = BertFeatures(BertFeaturesConfig(**own))
    if not scratch:
        reader.bert.load_state_dict(bert.state_dict())
    print(f"tuned={tuned}: BERT is frozen; the BiLSTM and the output above it are new", file=sys.stderr)
    return reader, tokenizer


def reading_rate(training: TrainingConfig, tuned: Tuned, run: Run) -> TrainingConfig:
    """With the learning rate of a BiLSTM where that is what is trained, unless the user has given one."""
    if tuned == "all" or "training.learning_rate" in run.overrides:
        return training
    return replace(training, learning_rate=READING_RATE)


def rates(run: Run) -> dict[str, Any]:
    """The dropout rates among the settings: all else is given by the model to start from, and a ValueError says so."""
    given = {key.removeprefix("model."): value for key, value in run.overrides.items() if key.startswith("model.")}
    fixed = {"preset", "vocabulary", "tokenizer", "tokens", "lowercase", "joint"} & set(run.overrides)
    fixed |= {f"model.{name}" for name in given if not name.endswith("dropout")}
    if fixed:
        raise ValueError(f"{', '.join(sorted(fixed))}: given by the model to start from, {run.init}; leave it out")
    return given


def warmed_up(training: TrainingConfig, run: Run, batches: int) -> TrainingConfig:
    """With a warm-up of at most a tenth of the steps, as in BERT's code, unless the user has said how long: on little
    data the recipe's would outlast the run. `batches` are those of an epoch."""
    if "training.warmup" in run.overrides:
        return training
    steps = [training.steps, training.epochs and training.epochs * math.ceil(batches / training.accumulate)]
    shortest = min((n for n in steps if n is not None), default=None)
    if shortest is None or (tenth := math.ceil(shortest / 10)) >= training.warmup:
        return training
    print(f"warm-up: {tenth} steps, a tenth of the run, instead of the recipe's {training.warmup}", file=sys.stderr)
    return replace(training, warmup=tenth)

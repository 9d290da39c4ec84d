"""Starting from another model's weights (`--init`): the body stays, the head is that of the task."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from tokenizers import Tokenizer

from manyheads.directory import Loaded, load
from manyheads.errors import UserError
from manyheads.models.adapt import adapt
from manyheads.models.bert import Bert, Head
from manyheads.models.bert_features import BertFeatures, BertFeaturesConfig
from manyheads.runs.recipe import Tuned
from manyheads.runs.run import Run
from manyheads.training.config import TrainingConfig
from manyheads.training.schedules import run_length, steps_per_epoch

logger = logging.getLogger(__name__)

LAYERS_READ = {"last": 1, "last-four": 4}  # by a BiLSTM
LSTM_RATE = 1e-3
OF_THE_MODEL = ("preset", "vocabulary", "tokenizer", "tokens", "lowercase", "joint")  # settings that its weights decide


def start(run: Run, kind: Any, origin: str, **settings: Any) -> tuple[Any, Loaded]:
    """The model of `--init`, which has to be of that kind, with other settings; what is new is logged.

    origin  what the recipe starts from, for the error where the model is another
    """
    loaded = opened(run, kind, origin)
    return adapted(run, loaded, **settings), loaded


def opened(run: Run, kind: Any, origin: str) -> Loaded:
    """The model of `--init` as it is; see `start`."""
    assert run.init is not None
    loaded = load(run.init)
    if not isinstance(loaded.model, kind):
        raise UserError(f"{run.init}: a {loaded.family} model; {run.recipe} starts from {origin}")
    return loaded


def adapted(run: Run, loaded: Loaded, **settings: Any) -> Any:
    """What was opened, with other settings; what is new is logged."""
    given = model_settings(run)
    known = [f.name for f in fields(loaded.model.config) if f.name not in ("labels", "head")]
    if unknown := [f"model.{name}" for name in given if name not in known]:
        raise UserError(f"{', '.join(unknown)}: valid are {', '.join(known)}")
    try:
        model, new = adapt(loaded.model, **settings)
    except UserError as error:
        named = "".join(f"model.{name}: " for name in given)
        raise UserError(f"{named}{run.init} cannot be changed so: {error}") from None
    kept = len(model.state_dict()) - len(new)
    logger.info(f"starting from {run.init}: {kept} tensors are its own, new: {', '.join(new) or 'none'}")
    return model


def tokenizer_of(loaded: Loaded) -> Tokenizer:
    if loaded.tokenizer is None:
        raise UserError(f"{loaded.path} has no tokenizer.json, so training cannot continue from it")
    return loaded.tokenizer


def dropouts(run: Run) -> dict[str, Any]:
    """The rates of dropout among the settings: all else is given by the model to start from, and a UserError says so.
    (Settings that leave the shapes of weights as they are, the place of a norm, would make them mean something else.)
    """
    rates = {key.removeprefix("model."): value for key, value in run.given.items() if key.endswith("dropout")}
    others = tuple(f"model.{key}" for key in model_settings(run) if key not in rates)
    run.refuse((*OF_THE_MODEL, *others), f"given by the model to start from, {run.init}; leave it out")
    return rates


def model_settings(run: Run) -> dict[str, Any]:
    """Of the settings that the user has given, those below `model.`."""
    return {key.removeprefix("model."): value for key, value in run.given.items() if key.startswith("model.")}


def start_bert(
    run: Run, head: Head, labels: tuple[str, ...] = (), rates: Mapping[str, float] | None = None
) -> tuple[Bert, Tokenizer]:
    """The BERT of `--init` under a new head, with its tokenizer.

    rates  of dropout: the recipe's own; the user's come before them
    """
    settings = {**(rates or {}), **dropouts(run)}
    model, loaded = start(run, Bert, "BERT's weights", head=head, labels=labels, **settings)
    return model, tokenizer_of(loaded)


def start_tuned(
    run: Run,
    head: Head,
    labels: tuple[str, ...],
    tuned: Tuned,
    *,
    scratch: bool = False,
    rates: Mapping[str, float] | None = None,
) -> tuple[Bert | BertFeatures, Tokenizer]:
    """The BERT of `--init` under a new head and tuned as a whole; or frozen, under a BiLSTM that reads its layers.

    scratch  with new weights all the same
    rates    of dropout: the recipe's own; the user's come before them
    """
    if tuned == "all":
        model, tokenizer = start_bert(run, head, labels, rates)
        return (Bert(model.config) if scratch else model), tokenizer
    bert, tokenizer = start_bert(run, "none", rates=rates)
    own = {
        **asdict(bert.config), "head": head, "labels": labels, "read": LAYERS_READ[tuned], "hidden": bert.config.width,
    }  # fmt: skip
    features = BertFeatures(BertFeaturesConfig(**own))
    if not scratch:
        features.bert.load_state_dict(bert.state_dict())
    logger.info(f"tuned={tuned}: BERT is frozen; the BiLSTM and the output above it are new")
    return features, tokenizer


def fine_tuning(training: TrainingConfig, run: Run, batches: int, tuned: Tuned = "all") -> TrainingConfig:
    """With a warm-up of at most a tenth of the steps, as in BERT's code: on little data the recipe's would outlast the
    run. With the learning rate of a BiLSTM where that is what is trained. What the user has given stays as it is.

    batches  of an epoch
    """
    if tuned != "all" and "training.learning_rate" not in run.given:
        training = replace(training, learning_rate=LSTM_RATE)
    if "training.warmup" in run.given:
        return training
    steps = run_length(training, steps_per_epoch(training, batches))
    if steps is None or (tenth := math.ceil(steps / 10)) >= training.warmup:
        return training
    logger.info(f"warm-up: {tenth} steps, a tenth of the run, instead of the recipe's {training.warmup}")
    return replace(training, warmup=tenth)

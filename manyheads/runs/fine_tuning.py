"""Fine-tuning from the weights of another model (`--init`), with a new head for the task."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from types import UnionType
from typing import Any, TypeVar

from tokenizers import Tokenizer

from manyheads.core.config import Config
from manyheads.core.interface import Model
from manyheads.directory import Loaded, load
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.models.adapt import adapt
from manyheads.models.bert import Bert, Head
from manyheads.models.bert_features import BertFeatures, BertFeaturesConfig
from manyheads.runs.options import Run
from manyheads.runs.recipe import Tuned
from manyheads.training.config import TrainingConfig

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Model[Config])

# value of the setting `tuned` -> number of last BERT layers whose states are the input of a BiLSTM
BILSTM_LAYERS = {"last": 1, "last-four": 4}
# default learning rate if only a BiLSTM, LoRA matrices or a head are trained, and the other weights are frozen
PARTIAL_RATE = 1e-3
# settings that users cannot change, because the loaded model determines them
MODEL_SETTINGS = ("preset", "vocabulary", "tokenizer", "tokens", "lowercase", "joint")
# Endings of the names of model settings that a LoRA run may change: the head, which the adapter contains, and rates
# that only affect training.
BESIDES = ("head", "labels", "target", "representation", "projection", "dropout", "stochastic_depth")


def start(run: Run, kind: type[M] | tuple[type[M], ...], origin: str, **settings: object) -> tuple[M, Loaded]:
    """Load the model of `--init`, check its class, apply settings, and log which tensors are newly initialized.

    kind      expected class of the model, or several classes
    origin    description of the expected model for the error message
    settings  model settings to apply, such as the head and the labels of the task
    """
    loaded = opened(run, kind, origin)
    model: M = adapted(run, loaded, **settings)
    return model, loaded


def opened(run: Run, kind: type | UnionType | tuple[type, ...], origin: str) -> Loaded:
    """Load the model of `--init` without changes.

    kind    expected class of the model, or several classes
    origin  description of the expected model for the error message

    Raises UserError if the model has another class.
    """
    assert run.init is not None
    loaded = load(run.init)
    if not isinstance(loaded.model, kind):
        raise UserError(f"{run.init}: found a {loaded.family} model, but {run.recipe} starts from {origin}")
    return loaded


def adapted(run: Run, loaded: Loaded, **settings: object) -> Any:
    """Apply settings to the loaded model, and log which tensors are newly initialized."""
    given = model_settings(run)
    known = [f.name for f in fields(loaded.model.config) if f.name not in ("labels", "head", "target")]
    if unknown := [f"model.{name}" for name in given if name not in known]:
        raise UserError(f"{', '.join(unknown)}: unknown settings; valid are {', '.join(known)}")
    try:
        model, new = adapt(loaded.model, **settings)
    except UserError as error:
        named = "".join(f"model.{name}: " for name in given)
        raise UserError(f"{named}failed to apply this to {run.init}: {error}") from None
    if not run.resume:  # A resumed run keeps the settings that it was started with.
        model.new = tuple(new)  # `select_trained` checks that these new tensors are trained.
        old, config = vars(loaded.model.config), vars(model.config)
        changed = [name for name in old if old[name] != config[name] and not name.endswith(BESIDES)]
        if changed and run.given.get("training.lora_rank") is not None:
            raise UserError(
                f"training.lora_rank: this run changes {', '.join(changed)} of {run.init}, so the adapter would not fit"
                " the base model. Keep these values of the base model, or omit lora_rank"
            )
    kept = len(model.state_dict()) - len(new)
    if run.given.get("scratch"):
        logger.info(f"using the sizes of {run.init}, with new weights: scratch=true")
    else:
        logger.info(f"starting from {run.init}: loaded {kept} tensors; new: {', '.join(new) or 'none'}")
    return model


def tokenizer_of(loaded: Loaded) -> Tokenizer:
    if loaded.tokenizer is None:
        raise UserError(f"{loaded.path} has no tokenizer.json, so it cannot be fine-tuned")
    return loaded.tokenizer


def dropout_rates(run: Run) -> JsonObject:
    """Return the dropout rates among the user's settings.

    Raises UserError for other model settings, because the loaded model determines them. This includes settings that
    keep the shapes of the weights but change their meaning, such as the position of a norm.
    """
    rates = {key: value for key, value in model_settings(run).items() if key.endswith("dropout")}
    others = tuple(f"model.{key}" for key in model_settings(run) if key not in rates)
    run.refuse((*MODEL_SETTINGS, *others), f"determined by the initial model, {run.init}; omit it")
    return rates


def model_settings(run: Run) -> JsonObject:
    """Return the user's settings whose keys begin with `model.`."""
    return {key.removeprefix("model."): value for key, value in run.given.items() if key.startswith("model.")}


def start_bert(
    run: Run, head: Head, labels: tuple[str, ...] = (), rates: Mapping[str, float] | None = None
) -> tuple[Bert, Tokenizer]:
    """Load the BERT model of `--init` with a new head, and its tokenizer.

    rates  default dropout rates of the recipe; the user's settings take precedence
    """
    settings = {**(rates or {}), **dropout_rates(run)}
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
    """Load the BERT model of `--init` with a new head, for full fine-tuning or as frozen features.

    As frozen features, the states of BERT's layers are the input of a trainable BiLSTM.

    tuned    "all" for full fine-tuning; "last" or "last-four" for the layers of the frozen BERT that the BiLSTM reads
    scratch  if True, keep the sizes of the loaded model, but initialize new weights
    rates    default dropout rates of the recipe; the user's settings take precedence
    """
    if tuned == "all":
        model, tokenizer = start_bert(run, head, labels, rates)
        return (Bert(model.config) if scratch else model), tokenizer
    bert, tokenizer = start_bert(run, "none", rates=rates)
    own = {
        **asdict(bert.config), "head": head, "labels": labels, "read": BILSTM_LAYERS[tuned],
        "hidden": bert.config.width,
    }  # fmt: skip
    features = BertFeatures(BertFeaturesConfig(**own))
    if not scratch:
        features.bert.load_state_dict(bert.state_dict())
    logger.info(f"tuned={tuned}: BERT is frozen; the BiLSTM and its output layer are new")
    return features, tokenizer


def fine_tuning(training: TrainingConfig, run: Run, tuned: Tuned) -> TrainingConfig:
    """Return the training configuration for fine-tuning.

    The learning rate becomes `PARTIAL_RATE` if only a BiLSTM, LoRA matrices or the head are trained, unless the user
    has set it.
    """
    partial = tuned != "all" or training.lora_rank is not None or "backbone" in training.freeze
    if partial and "training.learning_rate" not in run.given:
        logger.info(f"learning rate: using {PARTIAL_RATE}, because only a part of the model is trained")
        return replace(training, learning_rate=PARTIAL_RATE)
    return training

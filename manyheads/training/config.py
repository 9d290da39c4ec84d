"""Configuration of a training run: limits, optimizer, learning-rate schedule and intervals."""

from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Annotated, Literal, Self

from manyheads.core.config import Config, Count, Distinct, Epsilon, Positive, Range, Rate, Size, as_dict
from manyheads.errors import UserError
from manyheads.files import JsonMapping, JsonObject

BUDGETS = ("steps", "epochs", "minutes")
# names of the settings that users may change when they resume a run
RESUMABLE = (
    *BUDGETS,
    "patience",
    "validate_every",
    "log_every",
    "keep_every",
    "keep_steps",
    "shard",
    "tensor_parallel",
    "checkpointing",
)
LORA_DEFAULTS = (16.0, 0.0, ("query", "value"))  # lora_alpha, lora_dropout and lora_layers
DECAY_SCHEDULES = ("linear", "cosine")  # learning-rate schedules that depend on the total number of steps
Beta = Annotated[float, Range(0, 1, below=True)]


@dataclass(frozen=True)
class TrainingConfig(Config):
    """Limits, optimizer, learning-rate schedule and intervals of a training run.

    The defaults are those of Vaswani 2017, section 5.3.

    A step is one update with an effective batch of `accumulate` micro-batches, fewer at the end of an epoch. The run
    ends at the first limit that is reached: `steps`, `epochs` or `minutes`.

    steps             number of steps after which the run ends. With none, the number of steps is not limited
    epochs            number of passes over the training data after which the run ends. With none, it is not limited
    minutes           wall time in minutes, of all sessions together, after which the run ends. It never affects the
                      learning rate. With none, the time is not limited
    optimizer         name of the optimizer: adam, adamw, bert_adam, sgd or rmsprop
    schedule          shape of the learning rate over the steps: noam, inverse_sqrt, linear, cosine or constant
    learning_rate     peak learning rate. For the schedule "noam" it is a factor of
                      width^-0.5 * min(step^-0.5, step * warmup^-1.5)
    width             width of the model; only the schedule "noam" uses it
    warmup            number of steps in which the learning rate rises from 0 to its peak
    floor             final learning rate of a linear or cosine decay, as a fraction of the peak
    betas             decay rates of the moments of Adam. For sgd, the first value is the momentum. The optimizer
                      rmsprop ignores both and uses rho = 0.9 as in Keras
    eps               epsilon of Adam, added to the denominator of each update
    weight_decay      weight decay of matrices only. It is ignored by adam and rmsprop, decoupled from the gradient in
                      adamw and bert_adam, and part of the gradient in sgd
    clip              maximum global norm of the gradients. Gradients with a larger norm are scaled down. With none,
                      gradients are not clipped
    accumulate        number of micro-batches whose gradients are accumulated for one step
    checkpointing     gradient checkpointing: if true, activations are computed again in the backward pass, to save
                      memory. The gradients are identical
    shard             method of training in several processes. If true, weights, gradients and optimizer state are split
                      over the processes (FSDP2). If false, each process has a copy of them (DDP)
    tensor_parallel   number of processes that split each layer among them (Shoeybi 2019). Each such group of processes
                      reads the same rows of a batch
    average           number of sets of weights whose mean becomes the final weights. The last weights are one of them
    average_every     steps between two sets of weights for `average`. With none, it equals `checkpoint_every`
    ema               decay of an exponential moving average that replaces the final weights, such as 0.9999. The decay
                      of early steps is at most (1 + step) / (10 + step), so that early weights do not dominate a short
                      run. With none, there is no moving average
    validate_every    steps between validations. With none, the run validates at the end of every epoch
    checkpoint_every  steps between checkpoints
    keep_every        epochs between two models that are saved as kept/epoch-0 (before training), kept/epoch-N, ... They
                      show how a model changes during training. With none, no such models are saved
    keep_steps        steps between two models that are saved as kept/step-0, kept/step-N, ... With none, no such models
                      are saved
    log_every         steps between two lines of the training log metrics.jsonl
    skip_nonfinite    maximum number of steps that may be skipped because their loss or gradient is not finite. The run
                      stops if there are more. A skipped step changes no weight
    metric            validation metric that selects the final weights: the weights with its best value. With none, the
                      final weights are the last ones. A run on your own data keeps the best weights by default, unless
                      it averages weights
    patience          number of validations in a row without a better `metric`, after which the run stops. With none,
                      there is no early stopping
    seed              seed of the random numbers: weights, order of the data, dropout
    freeze            parameters that are not trained: parts of their names, such as embedding or encoder.blocks.[0-3],
                      separated by commas. "backbone" means all parameters except those of heads (linear probing)
    layer_decay       factor of the learning rate per layer, from the head down to the embeddings, such as 0.75
    lora_rank         rank of the low-rank matrices that are added to the weights of linear layers (LoRA). Only these
                      matrices and the head are trained; in the saved model they are added to the weights. With none,
                      LoRA is not used
    lora_alpha        scale of the low-rank matrices, which are multiplied by lora_alpha / lora_rank
    lora_dropout      dropout rate of the input of the low-rank matrices
    lora_layers       linear layers that get a low-rank matrix: parts of their names, such as query or encoder.blocks.3
    """

    steps: Count | None = None
    epochs: Count | None = None
    minutes: Positive | None = None
    optimizer: Literal["adam", "adamw", "bert_adam", "sgd", "rmsprop"] = "adam"
    schedule: Literal["noam", "inverse_sqrt", "linear", "cosine", "constant"] = "noam"
    learning_rate: Positive = 1.0
    width: Size | None = None
    warmup: Annotated[int, Range(0, 10**9)] = 4000
    floor: Rate = 0.0
    betas: tuple[Beta, Beta] = (0.9, 0.98)
    eps: Epsilon = 1e-9
    weight_decay: Annotated[float, Range(0, 1000)] = 0.0
    clip: Positive | None = None
    accumulate: Count = 1
    checkpointing: bool = False
    shard: bool = False
    tensor_parallel: Annotated[int, Range(1, 1024)] = 1
    average: Annotated[int, Range(1, 1000)] = 1
    average_every: Count | None = None
    ema: Annotated[float, Range(0, 1, above=True, below=True)] | None = None
    validate_every: Count | None = None
    checkpoint_every: Count = 500
    keep_every: Count | None = None
    keep_steps: Count | None = None
    log_every: Count = 50
    skip_nonfinite: Annotated[int, Range(0, 10**9)] = 0
    metric: str | None = None
    patience: Count | None = None
    seed: Annotated[int, Range(0, 2**63 - 1)] = 1
    freeze: tuple[str, ...] = ()
    layer_decay: Annotated[float, Range(0, 1, above=True)] = 1.0
    lora_rank: Size | None = None
    lora_alpha: Positive = LORA_DEFAULTS[0]
    lora_dropout: Annotated[float, Range(0, 1, below=True)] = LORA_DEFAULTS[1]
    lora_layers: Annotated[tuple[str, ...], Distinct(1)] = LORA_DEFAULTS[2]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is None and self.epochs is None and self.minutes is None:
            raise UserError("a run needs a budget: set steps, epochs or minutes")
        if self.schedule == "noam" and (self.width is None or not self.warmup):
            raise UserError("the schedule noam needs the width of the model and a warmup above 0")
        if self.schedule == "inverse_sqrt" and not self.warmup:
            raise UserError("the schedule inverse_sqrt needs a warmup above 0")
        if self.schedule in DECAY_SCHEDULES and self.steps is None and self.epochs is None:
            raise UserError(f"the schedule {self.schedule} needs steps or epochs: minutes never shape a schedule")
        if self.floor and self.schedule not in DECAY_SCHEDULES:
            raise UserError(
                f"floor is {self.floor}, but the schedule {self.schedule} does not decay: use the schedule "
                f"{', '.join(DECAY_SCHEDULES[:-1])} or {DECAY_SCHEDULES[-1]}, or add training.floor=0"
            )
        if self.ema is not None and self.average > 1:
            raise UserError(
                f"ema is {self.ema} and average is {self.average}: expected only one of them, because both average the "
                "weights"
            )
        if self.optimizer in ("adam", "rmsprop") and self.weight_decay:
            raise UserError(f"{self.optimizer} does not support weight_decay: use optimizer=adamw, bert_adam or sgd")
        if self.patience is not None and self.metric is None:
            raise UserError("patience needs a metric to monitor: set training.metric")
        if self.lora_rank is None and (self.lora_alpha, self.lora_dropout, self.lora_layers) != LORA_DEFAULTS:
            raise UserError("lora_alpha, lora_dropout and lora_layers have no effect without lora_rank: add it")

    @property
    def selects(self) -> bool:
        """Return True if only a part of the weights is trained, or if layers have different learning rates."""
        return bool(self.freeze) or self.lora_rank is not None or self.layer_decay < 1

    def differs_from(self, saved: JsonObject) -> list[str]:
        """Return the settings for which this configuration cannot resume a saved run, as texts `key: saved -> now`.

        If the result is empty, the run can be resumed. The settings in `RESUMABLE` may differ from those of the saved
        run, and skip_nonfinite may be larger.

        saved  configuration of the saved run
        """
        now = as_dict(self)
        return [
            f"{key}: {saved.get(key)!r} -> {now.get(key)!r}"
            for key in {**saved, **now}
            if key not in RESUMABLE
            and saved.get(key) != now.get(key)
            and not (key == "skip_nonfinite" and now[key] > saved[key])
        ]

    def resumed(self, saved: JsonMapping, changed: Collection[str]) -> Self:
        """Return the configuration of a saved run, with only the `changed` settings of this configuration."""
        values = {f.name: saved[f.name] for f in fields(self) if f.name not in changed}
        return replace(self, **values | {"betas": tuple(values.get("betas", self.betas))})

"""Configuration of a training run: limits, optimizer, learning-rate schedule and intervals."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from manyheads.core.config import Config, Count, Epsilon, Positive, Range, Rate, Size, with_defaults
from manyheads.errors import UserError

BUDGETS = ("steps", "epochs", "minutes")
DECAY_SCHEDULES = ("linear", "cosine")  # learning-rate schedules that depend on the total number of steps
Beta = Annotated[float, Range(0, 1, below=True)]


@dataclass(frozen=True)
class TrainingConfig(Config):
    """Limits, optimizer, learning-rate schedule and intervals of a training run.

    The defaults are those of Vaswani 2017, section 5.3.

    A step is one update with an effective batch of `accumulate` micro-batches, fewer at the end of an epoch. The run
    ends at the first limit that is reached: `steps`, `epochs` or `minutes`. `minutes` counts the wall time of all
    sessions and never affects the learning rate.
    """

    steps: Count | None = None
    epochs: Count | None = None
    minutes: Positive | None = None
    optimiser: Literal["adam", "adamw", "bert_adam", "sgd", "rmsprop"] = "adam"
    schedule: Literal["noam", "linear", "cosine", "constant"] = "noam"
    # Peak learning rate. For the schedule "noam" it is a factor of width^-0.5 * min(step^-0.5, step * warmup^-1.5).
    learning_rate: Positive = 1.0
    width: Size | None = None  # width of the model; only the learning-rate schedule "noam" uses it
    warmup: Annotated[int, Range(0, 10**9)] = 4000  # number of warm-up steps of the learning rate
    floor: Rate = 0.0  # final learning rate of a linear or cosine decay, as a fraction of the peak
    # Decay rates of the moments (betas) of Adam. For sgd, the first value is the momentum. The optimizer rmsprop
    # ignores both and uses rho = 0.9 as in Keras.
    betas: tuple[Beta, Beta] = (0.9, 0.98)
    eps: Epsilon = 1e-9
    # Weight decay of matrices only. It is ignored by adam and rmsprop, decoupled from the gradient in adamw and
    # bert_adam, and part of the gradient in sgd.
    weight_decay: Annotated[float, Range(0, 1000)] = 0.0
    clip: Positive | None = None  # gradients with a larger global norm are scaled down to this norm
    accumulate: Count = 1  # number of micro-batches whose gradients are accumulated for one step
    # Gradient checkpointing: to save memory, the backward pass computes each block again instead of storing its
    # activations. The gradients are identical.
    checkpointing: bool = False
    # With several processes: True splits weights, gradients and optimizer state over the processes (FSDP2), False
    # copies them to each process (DDP).
    shard: bool = False
    # Number of sets of weights whose mean becomes the final weights. The last weights are one of these sets.
    average: Annotated[int, Range(1, 1000)] = 1
    # steps between two sets of weights that enter the mean of `average`; None: as many as `checkpoint_every`
    average_every: Count | None = None
    # Decay, such as 0.9999, of an exponential moving average of the weights, which replaces the final weights. The
    # decay of early steps is at most (1 + step) / (10 + step), so that early weights do not dominate a short run.
    ema: Annotated[float, Range(0, 1, above=True, below=True)] | None = None
    validate_every: Count | None = None  # steps between validations; None: at the end of every epoch
    checkpoint_every: Count = 500  # steps between checkpoints
    # Number of epochs between two saved models: kept/epoch-0 (before training), kept/epoch-N, ... They show how a model
    # changes during training. None: no models are saved.
    keep_every: Count | None = None
    log_every: Count = 50  # steps between two entries of the training log
    # The run stops if more than this number of steps were skipped because their loss or gradient was not finite. A
    # skipped step changes no weight.
    skip_nonfinite: Annotated[int, Range(0, 10**9)] = 0
    # name of a validation metric; if set, the weights with its best value become the final weights
    metric: str | None = None
    # number of validations in a row without a new best value of `metric`, after which the run stops
    patience: Count | None = None
    seed: Annotated[int, Range(0, 2**63 - 1)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if all(getattr(self, budget) is None for budget in BUDGETS):
            raise UserError("a run needs a budget: set steps, epochs or minutes")
        if self.schedule == "noam" and (self.width is None or not self.warmup):
            raise UserError("the schedule noam needs the width of the model and a warmup above 0")
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
        if self.optimiser in ("adam", "rmsprop") and self.weight_decay:
            raise UserError(f"{self.optimiser} does not support weight_decay: use optimiser=adamw, bert_adam or sgd")
        if self.patience is not None and self.metric is None:
            raise UserError("patience needs a metric: set the validation metric to monitor")

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as a dictionary, with the types that a JSON file returns (lists instead of tuples)."""
        return {**asdict(self), "betas": list(self.betas)}

    def differs_from(self, saved: dict[str, Any]) -> list[str]:
        """Return the settings that differ from those of a saved run and so prevent this configuration from resuming it.

        Each is a text `key: saved -> now`. If the result is empty, the run can be resumed. A resumed run may have a
        later end if the learning-rate schedule does not depend on it, a higher skip_nonfinite, and other values of
        shard or checkpointing. A setting that is missing in the saved run had its default value.
        """
        now = self.as_dict()
        saved = with_defaults(self, saved)
        raisable = ("skip_nonfinite", "minutes") if self.schedule in DECAY_SCHEDULES else ("skip_nonfinite", *BUDGETS)
        return [
            f"{key}: {saved.get(key)!r} -> {now.get(key)!r}"
            for key in {**saved, **now}
            if key not in ("shard", "checkpointing")
            and saved.get(key) != now.get(key)
            and not (key in raisable and _is_raised(saved.get(key), now.get(key)))
        ]


def _is_raised(old: float | None, new: float | None) -> bool:
    return new is None or (old is not None and new > old)

"""Settings of a training run."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from manyheads.core.config import Config, Count, Epsilon, Positive, Range, Rate, Size, with_defaults
from manyheads.errors import UserError

BUDGETS = ("steps", "epochs", "minutes")
DECAY_SCHEDULES = ("linear", "cosine")  # schedules whose shape depends on the budget
Beta = Annotated[float, Range(0, 1, below=True)]


@dataclass(frozen=True)
class TrainingConfig(Config):
    """Budgets, optimizer, schedule and intervals of a run. The defaults are those of Vaswani 2017, section 5.3.

    A step is one update with an effective batch of `accumulate` micro-batches, fewer at the end of an epoch. The run
    ends when the first budget is reached. `minutes` counts the wall time of all sessions and never affects a schedule.
    """

    steps: Count | None = None
    epochs: Count | None = None
    minutes: Positive | None = None
    optimiser: Literal["adam", "adamw", "bert_adam", "sgd", "rmsprop"] = "adam"
    schedule: Literal["noam", "linear", "cosine", "constant"] = "noam"
    # peak learning rate; for noam, a factor of width^-0.5 * min(step^-0.5, step * warmup^-1.5)
    learning_rate: Positive = 1.0
    width: Size | None = None  # width of the model, for noam
    warmup: Annotated[int, Range(0, 10**9)] = 4000  # number of warm-up steps
    floor: Rate = 0.0  # final learning rate of a linear or cosine decay, as a fraction of the peak
    # the first is the momentum of sgd; rmsprop ignores both and uses rho = 0.9 as in Keras
    betas: tuple[Beta, Beta] = (0.9, 0.98)
    eps: Epsilon = 1e-9
    # For matrices only. Ignored by adam and rmsprop, decoupled for adamw and bert_adam, part of the gradient for sgd.
    weight_decay: Annotated[float, Range(0, 1000)] = 0.0
    clip: Positive | None = None  # maximum global norm of the gradient
    accumulate: Count = 1  # micro-batches per effective batch
    # Gradient checkpointing: the backward pass recomputes each block. The gradients are the same and need less memory.
    checkpointing: bool = False
    # With several processes: True splits weights, gradients and optimizer state over them (FSDP2), False copies them
    # (DDP).
    shard: bool = False
    # number of snapshots in the final mean of the weights, including the final weights
    average: Annotated[int, Range(1, 1000)] = 1
    average_every: Count | None = None  # steps between snapshots; None: checkpoint_every
    # Decay, such as 0.9999, of an exponential moving average of the weights, which become the final weights. While (1 +
    # step) / (10 + step) is smaller, it is the decay, so that early weights do not dominate a short run.
    ema: Annotated[float, Range(0, 1, above=True, below=True)] | None = None
    validate_every: Count | None = None  # steps between validations; None: at the end of every epoch
    checkpoint_every: Count = 500  # steps between checkpoints
    # Epochs between saved models kept/epoch-0 (before training), ..., which show how a model changes; None: none are
    # saved.
    keep_every: Count | None = None
    log_every: Count = 50  # steps between log entries
    # Number of steps that may be skipped before the run stops, because their loss or gradient is not finite. A skipped
    # step changes no weight.
    skip_nonfinite: Annotated[int, Range(0, 10**9)] = 0
    metric: str | None = None  # name from `Task.metrics`; if set, the run keeps the best weights by this metric
    patience: Count | None = None  # stop after this number of validations in a row without a new best
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
        """Return the settings with the types that JSON returns."""
        return {**asdict(self), "betas": list(self.betas)}

    def differs_from(self, saved: dict[str, Any]) -> list[str]:
        """Return the settings that differ from those of a saved run, as texts `key: saved -> now`.

        Empty if this config can resume the saved run. A resume may raise a budget that does not shape the schedule,
        raise skip_nonfinite, and change shard or checkpointing. Fields that the saved config lacks have their defaults.
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

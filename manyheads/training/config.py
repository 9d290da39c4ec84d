"""The settings of a training run."""

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from manyheads.core.config import Config, Count, Epsilon, Positive, Range, Rate, Size, with_defaults
from manyheads.errors import UserError

BUDGETS = ("steps", "epochs", "minutes")
DECAYING = ("linear", "cosine")  # schedules whose shape is the budget
Beta = Annotated[float, Range(0, 1, below=True)]


@dataclass(frozen=True)
class TrainingConfig(Config):
    """Budgets, optimiser, schedule and rhythm of a run. The defaults are those of Vaswani 2017, section 5.3.

    A step is one update by an effective batch: `accumulate` micro-batches, fewer at the end of an epoch. Budgets: the
    one reached first ends the run. `minutes` counts the wall time of all sessions; it never shapes a schedule.
    """

    steps: Count | None = None
    epochs: Count | None = None
    minutes: Positive | None = None
    optimiser: Literal["adam", "adamw", "bert_adam", "sgd", "rmsprop"] = "adam"
    schedule: Literal["noam", "linear", "cosine", "constant"] = "noam"
    learning_rate: Positive = 1.0  # the peak; for noam the factor on width^-0.5 * min(step^-0.5, step * warmup^-1.5)
    width: Size | None = None  # of the model, for noam
    warmup: Annotated[int, Range(0, 10**9)] = 4000  # steps
    floor: Rate = 0.0  # of a linear or cosine decay: the share of the peak that it ends at
    betas: tuple[Beta, Beta] = (0.9, 0.98)  # of sgd, the first is the momentum; rmsprop has Keras's rho, 0.9, instead
    eps: Epsilon = 1e-9
    # on matrices only, and not of adam and rmsprop; decoupled, but part of sgd's gradient
    weight_decay: Annotated[float, Range(0, 1000)] = 0.0
    clip: Positive | None = None  # largest global norm of the gradient
    accumulate: Count = 1  # micro-batches in an effective batch
    # gradient checkpointing: blocks are computed a second time for their gradients, which are the same, in less memory
    checkpointing: bool = False
    # of several processes, each holds a part of weights, gradients and optimiser (FSDP2), not all of them (DDP)
    shard: bool = False
    average: Annotated[int, Range(1, 1000)] = 1  # the last N snapshots of the weights, the final ones among them
    average_every: Count | None = None  # steps between snapshots; None: checkpoint_every
    # decay, such as 0.9999, of a moving average of the weights, which then are the final ones; (1 + step) / (10 + step)
    # as long as that is less, so that a short run is not averaged with its beginning
    ema: Annotated[float, Range(0, 1, above=True, below=True)] | None = None
    validate_every: Count | None = None  # steps; None: at the end of every epoch
    checkpoint_every: Count = 500  # steps
    # epochs between models that stay, as kept/epoch-0 (before training), ...: to see how a model changed; None: none
    keep_every: Count | None = None
    log_every: Count = 50  # steps
    # steps that may be left out, since their loss or a gradient is not finite, before the run stops: no weight changes
    skip_nonfinite: Annotated[int, Range(0, 10**9)] = 0
    metric: str | None = None  # one of `Task.metrics`; if given, the best weights by it are kept
    patience: Count | None = None  # stop after so many validations in a row without a new best
    seed: Annotated[int, Range(0, 2**63 - 1)] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if all(getattr(self, budget) is None for budget in BUDGETS):
            raise UserError("a run needs a budget: give steps, epochs or minutes")
        if self.schedule == "noam" and (self.width is None or not self.warmup):
            raise UserError("the schedule noam needs the width of the model and a positive warmup")
        if self.schedule in DECAYING and self.steps is None and self.epochs is None:
            raise UserError(f"the schedule {self.schedule} needs steps or epochs: minutes never shape a schedule")
        if self.floor and self.schedule not in DECAYING:
            raise UserError(
                f"floor is {self.floor}, and the schedule {self.schedule} has none: only "
                f"{', '.join(DECAYING[:-1])} and {DECAYING[-1]} decay; add training.floor=0"
            )
        if self.ema is not None and self.average > 1:
            raise UserError(f"ema is {self.ema} and average {self.average}: expected one of them, as both average")
        if self.optimiser in ("adam", "rmsprop") and self.weight_decay:
            raise UserError(f"{self.optimiser} has no weight_decay: use optimiser=adamw, bert_adam or sgd")
        if self.patience is not None and self.metric is None:
            raise UserError("patience needs a metric of the validation to watch")

    def as_dict(self) -> dict[str, Any]:
        """As JSON would give it back."""
        return {**asdict(self), "betas": list(self.betas)}

    def differs_from(self, saved: dict[str, Any]) -> list[str]:
        """What makes this another run than the one that saved its config: `key: saved -> now`. A budget may be raised
        unless the schedule is shaped by it, as may that of steps to skip, and the weights may be sharded or blocks
        computed twice now. What a saved config does not know yet has its default."""
        now = self.as_dict()
        saved = with_defaults(self, saved)
        raisable = ("skip_nonfinite", "minutes") if self.schedule in DECAYING else ("skip_nonfinite", *BUDGETS)
        return [
            f"{key}: {saved.get(key)!r} -> {now.get(key)!r}"
            for key in {**saved, **now}
            if key not in ("shard", "checkpointing")
            and saved.get(key) != now.get(key)
            and not (key in raisable and _raised(saved.get(key), now.get(key)))
        ]


def _raised(old: float | None, new: float | None) -> bool:
    return new is None or (old is not None and new > old)

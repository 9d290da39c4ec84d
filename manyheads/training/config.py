"""The settings of a training run."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

Optimiser = Literal["adam", "adamw", "bert_adam", "sgd"]
BUDGETS = ("steps", "epochs", "minutes")
DECAYING = ("linear", "cosine")  # schedules whose shape is the budget
LOWER_IS_BETTER = ("loss", "perplexity", "bits_per_byte")  # of metrics; of all others more is better


@dataclass(frozen=True)
class TrainingConfig:
    """Budgets, optimiser, schedule and rhythm of a run. The defaults are those of Vaswani 2017, section 5.3.

    A step is one update by an effective batch: `accumulate` micro-batches, fewer at the end of an epoch. Budgets: the
    one reached first ends the run. `minutes` counts the wall time of all sessions; it never shapes a schedule.
    """

    steps: int | None = None
    epochs: int | None = None
    minutes: float | None = None
    optimiser: Optimiser = "adam"
    schedule: Literal["noam", "linear", "cosine", "constant"] = "noam"
    learning_rate: float = 1.0  # the peak; for noam the factor on width^-0.5 * min(step^-0.5, step * warmup^-1.5)
    width: int | None = None  # of the model, for noam
    warmup: int = 4000  # steps
    floor: float = 0.0  # of a linear or cosine decay: the share of the peak that it ends at
    betas: tuple[float, float] = (0.9, 0.98)  # of sgd, the first is the momentum
    eps: float = 1e-9
    weight_decay: float = 0.0  # on matrices only, not of adam; decoupled, but part of sgd's gradient
    clip: float | None = None  # largest global norm of the gradient
    accumulate: int = 1  # micro-batches in an effective batch
    average: int = 1  # the last N weight snapshots, the final weights among them, are averaged at the end
    average_every: int | None = None  # steps between snapshots; None: checkpoint_every
    # decay, such as 0.9999, of a moving average of the weights, which then are the final ones; (1 + step) / (10 + step)
    # as long as that is less, so that a short run is not averaged with its beginning
    ema: float | None = None
    validate_every: int | None = None  # steps; None: at the end of every epoch
    checkpoint_every: int = 500  # steps
    log_every: int = 50  # steps
    metric: str | None = None  # of `Task.validate`; given, the weights that did best by it are kept
    patience: int | None = None  # stop after so many validations in a row without a new best
    seed: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        if all(getattr(self, budget) is None for budget in BUDGETS):
            raise ValueError("a run needs a budget: give steps, epochs or minutes")
        for name in (*BUDGETS, "accumulate", "average", "average_every", "validate_every", "checkpoint_every",
                     "log_every", "patience", "clip"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value}")
        for name, known in (
            ("optimiser", get_args(Optimiser)),
            ("schedule", ("noam", "constant", *DECAYING)),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.schedule == "noam" and (self.width is None or self.warmup <= 0):
            raise ValueError("the schedule noam needs the width of the model and a positive warmup")
        if self.schedule in DECAYING and self.steps is None and self.epochs is None:
            raise ValueError(f"the schedule {self.schedule} needs steps or epochs: minutes never shape a schedule")
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor is a share, 0 to 1, got {self.floor}")
        if self.floor and self.schedule not in DECAYING:
            raise ValueError(
                f"floor is {self.floor}, and the schedule {self.schedule} has none: only {' and '.join(DECAYING)} "
                "decay; add training.floor=0"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas are {', '.join(map(str, self.betas))}: expected numbers from 0 to below 1")
        for name in ("eps", "weight_decay"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} is {value}: expected a number of 0 or more")
        if not 0 < self.learning_rate < math.inf or not self.warmup >= 0:
            raise ValueError(
                f"learning_rate is {self.learning_rate} and warmup {self.warmup}: expected a positive rate, and no "
                "fewer steps than 0"
            )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}: expected 0 to {2**63 - 1}")
        if self.ema is not None and (not 0 < self.ema < 1 or self.average > 1):
            raise ValueError(f"ema is {self.ema}: expected a decay between 0 and 1, without average={self.average}")
        if self.optimiser == "adam" and self.weight_decay:
            raise ValueError("adam has no weight_decay: use optimiser=adamw, bert_adam or sgd")
        if self.patience is not None and self.metric is None:
            raise ValueError("patience needs a metric of the validation to watch")

    def as_dict(self) -> dict[str, Any]:
        """As JSON would give it back."""
        return {**asdict(self), "betas": list(self.betas)}

    def differs_from(self, saved: dict[str, Any]) -> list[str]:
        """What makes this another run than the one that saved its config: `key: saved -> now`. A budget may be raised
        unless the schedule is shaped by it. What a saved config does not know yet has its default."""
        now = self.as_dict()
        saved = {field.name: field.default for field in fields(self) if field.name not in saved} | saved
        raisable = ("minutes",) if self.schedule in DECAYING else BUDGETS
        return [
            f"{key}: {saved.get(key)!r} -> {now.get(key)!r}"
            for key in {**saved, **now}
            if saved.get(key) != now.get(key) and not (key in raisable and _raised(saved.get(key), now.get(key)))
        ]


def _raised(old: float | None, new: float | None) -> bool:
    return new is None or (old is not None and new > old)

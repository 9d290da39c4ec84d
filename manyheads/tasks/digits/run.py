"""Strings of digits copied, reversed and added, and longer ones than were trained on (Dehghani 2018, section 4.4)."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn

from manyheads import directory
from manyheads.analysis import costs
from manyheads.analysis.figures.length_curve import draw
from manyheads.core.runtime import Route, prepare
from manyheads.data.algorithmic import SHORTEST, Algorithm, algorithmic_pairs, digit_tokenizer, pairs_by_length
from manyheads.data.parallel import Pairs
from manyheads.data.store import TokenStore, fingerprint
from manyheads.data.subword import END, PAD
from manyheads.models.presets import build, preset
from manyheads.recipes.run import Run, carry_out, identity, plan, refuse_width
from manyheads.tasks.digits.pondering import pondering
from manyheads.tasks.digits.task import ROOM, AlgorithmicTask, length_metrics, measure, tests_fingerprint
from manyheads.tasks.evaluation import Metrics
from manyheads.tasks.translation.predictor import Translator
from manyheads.tasks.translation.task import Corpus
from manyheads.training.config import TrainingConfig
from manyheads.training.loop import Summary
from manyheads.training.run_directory import claim

EXAMPLES = 3  # strings whose steps are shown
VALIDATED = 200  # strings


@dataclass(frozen=True)
class AlgorithmicConfig:
    """What a run on digits is made of.

    model         what is trained; `network` overrides fields of its configuration
    longest       characters of an input that is trained on, at most; `size` inputs, of all lengths alike
    lengths       of the inputs that are tested, `tested` of each
    offsets       while training a text begins at any position that the longest tested one has, so that none is new;
                  an LSTM has no positions
    batch_tokens  padded tokens of a micro-batch, on each side
    """

    model: Literal["universal", "transformer", "lstm"] = "universal"
    network: dict[str, Any] = field(default_factory=dict)
    longest: int = 40
    size: int = 40_000
    lengths: tuple[int, ...] = (20, 40, 60, 80, 120, 160, 240, 400)
    tested: int = 100
    offsets: bool = True
    batch_tokens: int = 1024
    threads: int | None = None
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(
            steps=4000, schedule="cosine", learning_rate=2e-3, warmup=300, clip=1.0, validate_every=500,
            checkpoint_every=500, log_every=50,
        )
    )  # fmt: skip

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", tuple(self.lengths))
        for name in ("longest", "size", "tested", "batch_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.lengths or list(self.lengths) != sorted({*self.lengths}):
            raise ValueError(f"lengths is {list(self.lengths)}: expected rising lengths to test, such as 40,80,400")


DEFAULT = AlgorithmicConfig()


def copy(config: AlgorithmicConfig = DEFAULT, *, run: Run) -> dict[str, Any] | None:
    """manyheads train universal/copy [model=universal|transformer|lstm] [offsets=false]

    Trained on up to 40 digits, tested on up to 400. Published at 400 (Dehghani 2018, table 4), characters / strings:
    LSTM .45 / .09, Transformer .53 / .03, Universal Transformer .91 / .35.
    """
    return _compute("copy", config, run)


def reverse(config: AlgorithmicConfig = DEFAULT, *, run: Run) -> dict[str, Any] | None:
    """manyheads train universal/reverse [model=universal|transformer|lstm] [offsets=false]

    The last digit first. Published at 400: LSTM .66 / .11, Transformer .13 / .06, Universal Transformer .96 / .46.
    """
    return _compute("reverse", config, run)


def addition(config: AlgorithmicConfig = DEFAULT, *, run: Run) -> dict[str, Any] | None:
    """manyheads train universal/addition [model=universal|transformer|lstm] [offsets=false]

    Two numbers, the least significant digit first. Published at 400: LSTM .08 / .00, Transformer .07 / .00, Universal
    Transformer .34 / .02.
    """
    return _compute("addition", config, run)


def planned_model(config: AlgorithmicConfig) -> nn.Module:
    """The model, without memory."""
    with torch.device("meta"):
        return _model(config)


def _model(config: AlgorithmicConfig) -> Any:
    """All three with the same width, and as many parameters a block; the Transformer has four blocks a side."""
    tokenizer = digit_tokenizer()
    pad, size = tokenizer.token_to_id(PAD), tokenizer.get_vocab_size()
    tokens = {"pad": pad, "end": tokenizer.token_to_id(END), "start": pad}
    if config.model == "lstm":
        return build(preset("seq2seq-lstm/tiny", **{"vocab": size, "dropout": 0.0, **tokens, **config.network}))
    positions = max(config.longest, *config.lengths) + ROOM + 2
    common: dict[str, Any] = {
        "source_vocab": size, "target_vocab": size, "max_positions": positions, "norm": "pre", "width": 64,
        "dropout": 0.0, **tokens,
    }  # fmt: skip
    if config.model == "transformer":
        sizes = {f"{side}_{name}": value for side in ("encoder", "decoder")
                 for name, value in (("layers", 4), ("heads", 4), ("feed_forward", 128))}  # fmt: skip
        settings = {"final_norm": True, **common, **sizes, **config.network}
        return build(preset("transformer/tiny", **settings))
    own = {"steps": 4, "heads": 4, "feed_forward": 128, "transition": "separable"}
    return build(preset("universal/tiny", **{**common, **own, **config.network}))


def _compute(algorithm: Algorithm, config: AlgorithmicConfig, run: Run) -> dict[str, Any] | None:
    """Strings -> model -> training -> longer strings -> result.json, lengths.png and steps.txt."""
    if run.init is not None:
        raise ValueError(f"{run.recipe} trains its own model: leave out --init")
    refuse_width(run)
    if config.lengths[0] < SHORTEST[algorithm]:
        raise ValueError(f"lengths begins with {config.lengths[0]}: {algorithm} needs {SHORTEST[algorithm]} or more")
    if run.dry_run:
        return plan(run, config, planned_model(config), config.batch_tokens)
    claim(run.out, resume=run.resume)
    planned: Any = planned_model(config)  # so that a wrong setting is told before anything is made
    route = prepare(run.precision or "float32", config.threads, run.compile)  # type: ignore[arg-type]
    seed = config.training.seed
    train = algorithmic_pairs(algorithm, config.size, config.longest, seed=seed, split="train")
    validation = algorithmic_pairs(algorithm, VALIDATED, config.longest, seed=seed, split="validation")
    tests = pairs_by_length(algorithm, config.lengths, config.tested, seed=seed)
    longest = 1 + max(len(text) for pairs in tests.values() for text in (*pairs.sources, *pairs.targets))  # and its end
    if longest > planned.config.max_positions:
        raise ValueError(
            f"network.max_positions is {planned.config.max_positions}: the longest of lengths needs {longest}"
        )
    task = _task(config, run, train, validation, route)
    fingerprints = {"train": fingerprint([*train.sources, *train.targets])[:16]}
    described = {
        "algorithm": algorithm, "model": config.model, "longest": config.longest,
        "fingerprints": {**fingerprints, "test": tests_fingerprint(tests)},
        "pairs": {"train": len(train), "validation": len(validation), "test": config.tested},
    }  # fmt: skip
    settings = {**identity(config, run, fingerprints, use=("tested",)), "algorithm": algorithm}
    curve: dict[str, dict[str, float]] = {}  # by measure and length
    shown: dict[str, Any] = {}

    def evaluate() -> Metrics:
        metrics: Metrics = {}
        translator = Translator(directory.load(run.out), route)
        for length, pairs in tests.items():
            found, outputs = measure(translator.model, task.tokenizer, pairs, route)
            for name, value in found.items():
                curve.setdefault(name, {})[str(length)] = value
            shown[str(length)] = {"input": pairs.sources[0], "output": outputs[0], "right": pairs.targets[0]}
            print(f"length {length:4}  " + "  ".join(f"{n} {v:.3f}" for n, v in found.items()), file=sys.stderr)
            if length in (config.longest, 2 * config.longest, config.lengths[-1]):  # of the curve, what is shown
                metrics |= length_metrics(found, length, len(pairs))
        draw([(config.model, {"curve": curve, "data": described})], run.out / "lengths.png")
        if config.model == "universal":
            examples = [str(pondering(translator, text)) for text in validation.sources[:EXAMPLES]]
            (run.out / "steps.txt").write_text("\n\n".join(examples) + "\n", encoding="utf-8")
        return metrics

    def flops(summary: Summary) -> float:
        source, target = task.train.mean_lengths()
        return costs.flops(task.model, source, target)["training"] * summary.tokens / target

    return carry_out(
        run, task, replace(config.training, width=task.model.config.width), route=route, settings=settings,
        data=described, evaluate=evaluate, flops=flops, curve=curve, examples=shown,
    )  # fmt: skip


def _task(config: AlgorithmicConfig, run: Run, train: Pairs, validation: Pairs, route: Route) -> AlgorithmicTask:
    torch.manual_seed(config.training.seed)
    model, tokenizer = _model(config), digit_tokenizer()

    def tokenised(pairs: Pairs) -> Corpus:
        cache = run.out / "state" / "tokens"
        sources, targets = (TokenStore.of(side, tokenizer, cache) for side in (pairs.sources, pairs.targets))
        return Corpus(sources, targets, config.longest + 2).checked(pairs, truncate=False)

    with_offsets = config.offsets and config.model != "lstm"
    return AlgorithmicTask(
        model, tokenizer, None, tokenised(train), tokenised(validation), route=route, batch_tokens=config.batch_tokens,
        smoothing=0.0, seed=config.training.seed, room=model.config.max_positions if with_offsets else 0,
    )  # fmt: skip

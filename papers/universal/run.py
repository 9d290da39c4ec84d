"""Training run on strings of digits: generation of the strings, training, and the accuracy for each string length."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import torch

from manyheads import directory
from manyheads.analysis import costs, drawing
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.parallel import Pairs
from manyheads.data.readers.splits import SplitData
from manyheads.data.sources.source import FINGERPRINT_DIGITS
from manyheads.data.text.store import TokenStore
from manyheads.data.text.tokenizers import END, PAD
from manyheads.errors import UserError
from manyheads.files import fingerprint
from manyheads.inference import CompiledModel
from manyheads.models.encoder_decoder import TranslationModel
from manyheads.models.presets import build, preset_for_data
from manyheads.runs.estimate import Plan
from manyheads.runs.run import Job, Run, carry_out
from manyheads.tasks.translation.objective import Corpus
from manyheads.tasks.translation.predictor import Translator
from manyheads.training.record import Metrics
from papers.universal.digit_strings import SHORTEST, digit_tokenizer
from papers.universal.length_curve import draw
from papers.universal.pondering import pondering
from papers.universal.recipes import DigitsConfig
from papers.universal.source import DigitSource, by_length
from papers.universal.task import MAX_EXTRA_TOKENS, DigitTask, length_metrics, measure

logger = logging.getLogger("manyheads")  # The commands print the messages of this logger.

# number of validation strings for which steps.txt lists the number of steps per token (adaptive halting)
STEP_EXAMPLES = 3
VALIDATION_STRINGS = 200  # number of digit strings in the validation data


def train(config: DigitsConfig, run: Run) -> dict[str, Any] | None:
    """Run the recipe. In addition to result.json, it writes lengths.png and, for a Universal Transformer, steps.txt."""
    run.refuse(("training.width",), "always the width of the model, so leave it out")
    run.refuse(
        ("algorithm",), "each algorithm has its own recipe: universal/copy, universal/reverse, universal/addition"
    )
    if config.lengths[0] < SHORTEST[config.algorithm]:
        raise UserError(
            f"lengths starts with {config.lengths[0]}: {config.algorithm} needs {SHORTEST[config.algorithm]} or more"
        )

    source = DigitSource(
        algorithm=config.algorithm, longest=config.longest, lengths=config.lengths, size=config.size,
        tested=config.tested, validated=VALIDATION_STRINGS, seed=config.training.seed,
    )  # fmt: skip

    def plan() -> Plan:
        return Plan(planned_model(config), config.batch_tokens)

    def build(splits: SplitData[Pairs], compute: ComputeConfig) -> Job[Pairs]:
        tests = splits.known["test"]
        longest = 1 + max(len(text) for text in (*tests.sources, *tests.targets))
        model = _model(config)
        if longest > model.config.max_positions:  # number of tokens in the longest text, including the end token
            raise UserError(f"network.max_positions is {model.config.max_positions}: expected {longest} or more")
        task = _task(config, run, model, splits, compute)
        curve: dict[str, dict[str, float]] = {}  # Each metric has a list, with one value for each string length.
        examples: dict[str, Any] = {}

        def score(strings: Pairs) -> Metrics:
            metrics: Metrics = {}
            translator = Translator(directory.load(run.out), compute)
            for length, pairs in by_length(strings).items():
                values, outputs = measure(CompiledModel(translator.model, compute), task.tokenizer, pairs)
                for name, value in values.items():
                    curve.setdefault(name, {})[str(length)] = value
                examples[str(length)] = {"input": pairs.sources[0], "output": outputs[0], "right": pairs.targets[0]}
                logger.info(f"length {length:4}  " + "  ".join(f"{n} {v:.3f}" for n, v in values.items()))
                # lengths of test strings for which result.json contains metrics
                if length in (config.longest, 2 * config.longest, config.lengths[-1]):
                    metrics |= length_metrics(values, length, len(pairs))
            with drawing.optional():
                draw([(config.model, {"curve": curve, "data": {"longest": config.longest}})], run.out / "lengths.png")
            if config.model == "universal":
                steps = [str(pondering(translator, text)) for text in splits.validation.sources[:STEP_EXAMPLES]]
                (run.out / "steps.txt").write_text("\n\n".join(steps) + "\n", encoding="utf-8")
            return metrics

        source_length, target_length = task.train.mean_lengths()
        flops = costs.flops(task.model, source_length, target_length)["training"] / target_length
        training = replace(config.training, width=task.model.config.width)
        identity = {"fingerprints": {"train": fingerprint(source.content(splits.train, "train"))[:FINGERPRINT_DIGITS]}}
        record = {"model": config.model, "curve": curve, "examples": examples}
        return Job(task.model, training, score, task, flops=flops, identity=identity, record=record)

    return carry_out(run, config, source, plan, build, may_change=("tested",))


def planned_model(config: DigitsConfig) -> TranslationModel:
    """Return the model on the meta device, which allocates no memory for weights."""
    with torch.device("meta"):
        return _model(config)


def _model(config: DigitsConfig) -> Any:
    """Build the model for digit strings.

    The plain Transformer and the Universal Transformer have equal width. The plain Transformer has four encoder layers
    and four decoder layers. The LSTMs are twice as wide.
    """
    tokenizer = digit_tokenizer()
    pad, size = tokenizer.token_to_id(PAD), tokenizer.get_vocab_size()
    tokens = {"pad": pad, "end": tokenizer.token_to_id(END), "start": pad}
    decided = {"source_vocab": size, "target_vocab": size, **tokens}
    if config.model == "lstm":
        return build(preset_for_data("seq2seq-rnn/tiny", (), {"dropout": 0.0, **config.network}, decided))
    positions = max(config.longest, *config.lengths) + MAX_EXTRA_TOKENS + 2
    common: dict[str, Any] = {"max_positions": positions, "norm": "pre", "width": 64, "dropout": 0.0}
    if config.model == "transformer":
        sizes = {f"{side}_{name}": value for side in ("encoder", "decoder")
                 for name, value in (("layers", 4), ("heads", 4), ("feed_forward", 128))}  # fmt: skip
        settings = {"final_norm": True, **common, **sizes, **config.network}
        return build(preset_for_data("transformer/tiny", (), settings, decided))
    own = {"steps": 4, "heads": 4, "feed_forward": 128, "transition": "separable"}
    return build(preset_for_data("universal/tiny", (), {**common, **own, **config.network}, decided))


def _task(config: DigitsConfig, run: Run, model: Any, splits: SplitData[Pairs], compute: ComputeConfig) -> DigitTask:
    tokenizer = digit_tokenizer()

    def tokenized(pairs: Pairs) -> Corpus:
        cache = run.out / "state" / "tokens"
        sources, targets = (TokenStore.of(side, tokenizer, cache) for side in (pairs.sources, pairs.targets))
        return Corpus(sources, targets, config.longest + 2).checked(pairs, truncate=False)

    with_offsets = config.offsets and config.model != "lstm"
    return DigitTask(
        model, tokenizer, None, tokenized(splits.train), tokenized(splits.validation), compute=compute,
        batch_tokens=config.batch_tokens, smoothing=0.0, seed=config.training.seed,
        start_positions=model.config.max_positions if with_offsets else 0,
    )  # fmt: skip

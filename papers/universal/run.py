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
from manyheads.files import JsonObject, fingerprint
from manyheads.inference import CompiledModel
from manyheads.models.encoder_decoder import TranslationModel
from manyheads.models.presets import build, preset_for_data
from manyheads.runs.estimate import Plan
from manyheads.runs.options import Run
from manyheads.runs.task import Job, Task
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


class Digits(Task[DigitsConfig, Pairs]):
    """Task of a model for strings of digits.

    In addition to result.json, a run writes lengths.png and, for a Universal Transformer, steps.txt.
    """

    may_change = ("tested",)

    def check(self) -> None:
        config, shortest = self.config, SHORTEST[self.config.algorithm]
        self.run.refuse(("training.width",), "always the width of the model, so leave it out")
        recipes = "universal/copy, universal/reverse, universal/addition"
        self.run.refuse(("algorithm",), f"each algorithm has its own recipe: {recipes}")
        if config.lengths[0] < shortest:
            raise UserError(f"lengths starts with {config.lengths[0]}: {config.algorithm} needs {shortest} or more")

    def planned_model(self) -> TranslationModel:
        with torch.device("meta"):
            return _model(self.config)

    def plan(self) -> Plan:
        return Plan(self.planned_model(), self.config.batch_tokens)

    def data(self) -> DigitSource:
        config = self.config
        return DigitSource(
            algorithm=config.algorithm, longest=config.longest, lengths=config.lengths, size=config.size,
            tested=config.tested, validated=VALIDATION_STRINGS, seed=config.training.seed,
        )  # fmt: skip

    def build(self, splits: SplitData[Pairs], compute: ComputeConfig) -> Job:
        config, model, tests = self.config, _model(self.config), splits.known["test"]
        longest = 1 + max(len(text) for text in (*tests.sources, *tests.targets))
        if longest > model.config.max_positions:  # number of tokens in the longest text, including the end token
            raise UserError(f"network.max_positions is {model.config.max_positions}: expected {longest} or more")
        objective = _objective(config, self.run, model, splits, compute)
        source, target = objective.train.mean_lengths()
        flops = costs.training_flops(model, source, target) / target
        content = self.data().content(splits.train, "train")
        identity = {"fingerprints": {"train": fingerprint(content)[:FINGERPRINT_DIGITS]}}
        self._validation, self._curve, self._examples = splits.validation, {}, {}
        record = {"model": config.model, "curve": self._curve, "examples": self._examples}
        training = replace(config.training, width=model.config.width)
        return Job(model, training, objective, flops=flops, identity=identity, record=record)

    # values of each metric by length, and an example of each length
    _curve: dict[str, dict[str, float]]
    _examples: JsonObject

    def score(self, held: Pairs, compute: ComputeConfig) -> Metrics:
        config, out = self.config, self.run.out
        metrics: Metrics = {}
        translator = Translator(directory.load(out), compute)
        for length, pairs in by_length(held).items():
            values, outputs = measure(CompiledModel(translator.model, compute), digit_tokenizer(), pairs)
            for name, value in values.items():
                self._curve.setdefault(name, {})[str(length)] = value
            self._examples[str(length)] = {"input": pairs.sources[0], "output": outputs[0], "right": pairs.targets[0]}
            logger.info(f"length {length:4}  " + "  ".join(f"{n} {v:.3f}" for n, v in values.items()))
            # lengths of test strings for which result.json contains metrics
            if length in (config.longest, 2 * config.longest, config.lengths[-1]):
                metrics |= length_metrics(values, length, len(pairs))
        with drawing.optional():
            draw([(config.model, {"curve": self._curve, "data": {"longest": config.longest}})], out / "lengths.png")
        if config.model == "universal":
            steps = [str(pondering(translator, text)) for text in self._validation.sources[:STEP_EXAMPLES]]
            (out / "steps.txt").write_text("\n\n".join(steps) + "\n", encoding="utf-8")
        return metrics

    def example(self, held: Pairs) -> list[str]:
        return ["translate", held.sources[0]]


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


def _objective(
    config: DigitsConfig, run: Run, model: TranslationModel, splits: SplitData[Pairs], compute: ComputeConfig
) -> DigitTask:
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

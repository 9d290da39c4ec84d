"""Run of the TF-IDF classifier, which is fitted at once, without the training loop."""

from __future__ import annotations

import logging
import shlex
import time

import torch

from manyheads import directory
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.labeled import Labeled, labels_of
from manyheads.data.readers.splits import working_directory
from manyheads.data.text.tokenizers import train_word_level
from manyheads.errors import UserError
from manyheads.files import JsonObject
from manyheads.models.presets import build, preset_for_data
from manyheads.models.tfidf import Tfidf
from manyheads.runs.checks import check_held_out, log_warnings
from manyheads.runs.estimate import Plan, estimate
from manyheads.runs.options import Run
from manyheads.runs.result import RunResult, brief
from manyheads.runs.run import log_splits
from manyheads.tasks.classification.predictor import Classifier
from manyheads.tasks.classification.recipes import ClassificationConfig
from manyheads.tasks.classification.task import Classification
from manyheads.tasks.encoding import encode
from manyheads.tasks.targets import Target
from manyheads.training.record import Metrics, add_own_run, commit, write_result
from manyheads.training.run_directory import locked_run_directory, saved_message
from papers.text_classifier.fitting import fit_tfidf

logger = logging.getLogger("manyheads")  # The command prints the messages of this logger.


def train(config: ClassificationConfig, run: Run) -> JsonObject:
    """Fit the classifier to the training texts, save and score it, and write result.json.

    Returns the content of result.json. A dry run returns the settings and the size of the model.
    """
    _check(run)
    source, compute = Classification(config, run).data(), run.compute(config.threads)
    if run.dry_run:
        if run.reads:
            log_splits(source, source.read())
        with torch.device("meta"):
            planned = _model(config, config.names or ("0", "1"), config.vocabulary, 0, 1)
        return estimate(run.recipe, config, Plan(planned, config.batch_tokens), compute)
    commit()  # The commit is read now, because the source files may change before the run ends.
    with locked_run_directory(run.out, resume=run.resume), compute.settings():
        splits = source.read()
        check_held_out(config, splits)
        log_splits(source, splits)
        logger.info(source.report(splits))
        description = {**source.describe(splits), "directory": working_directory(run.out)}
        add_own_run(description)
        started = time.monotonic()
        model = _fit(config, run, splits.train)
        seconds, held = time.monotonic() - started, splits.known.get(config.scored)
        result = RunResult(write_result(
            run.out, recipe=run.recipe, overrides=run.overrides, data=description,
            metrics={} if held is None else _score(config, run, held, compute), wall_seconds=seconds, flops=None,
            parameters=sum(parameter.numel() for parameter in model.parameters()), seed=config.training.seed,
            weights="fitted", steps=0, target_tokens=0, route=compute.describe(), validation={},
            truncate=config.truncate, scored=config.scored,
        ))  # fmt: skip
    shown = splits.validation if held is None else held
    result.next_command = shlex.join(["manyheads", "classify", str(run.out), brief(shown.texts)])
    return result


def _check(run: Run) -> None:
    """Raise UserError if the user set an option that has no effect in this run."""
    run.refuse(("tuned", "scratch", "auxiliary"), "no effect without a model to start from: leave it out")
    run.refuse(("tokens",), "no effect, because TF-IDF counts words: leave it out", changed_only=True)
    run.refuse(("target", "class_weights", "sampling"), "not supported by TF-IDF: leave it out", changed_only=True)
    reason = "no effect, because TF-IDF is fitted at once, without training steps: leave it out"
    keys = [key for key in run.given if key.startswith(("training.", "batch_")) and key != "training.seed"]
    run.refuse(tuple(keys), reason)
    options = {"--max-minutes": run.max_minutes, "--precision": run.precision, "--compile": run.compile or None}
    if unused := [name for name, value in options.items() if value is not None]:
        raise UserError(f"{', '.join(unused)}: {reason}")


def _fit(config: ClassificationConfig, run: Run, train: Labeled) -> Tfidf:
    """Fit the classifier, save it with its tokenizer, and return it."""
    if train.second_texts is not None:
        raise UserError(f"{config.data}: expected single texts, found pairs: give one column as columns.text=NAME")
    with log_warnings():
        tokenizer = train_word_level(train.texts, config.vocabulary)
    vocabulary, labels = tokenizer.get_vocab(), config.names or labels_of(train.labels, train.target)
    torch.manual_seed(config.training.seed)
    model = _model(config, labels, len(vocabulary), vocabulary["[PAD]"], vocabulary["[UNK]"])
    encoded = encode(tokenizer, train.texts, None, config.max_length, truncate=config.truncate)
    fit_tfidf(model, encoded.ids, Target("classes", labels).truth(train))
    logger.info(saved_message(directory.save(run.out, model, tokenizer, label_type=train.label_type), run.out))
    return model


def _score(config: ClassificationConfig, run: Run, held: Labeled, compute: ComputeConfig) -> Metrics:
    return Classifier(directory.load(run.out), compute).evaluate(held, truncate=config.truncate).metrics


def _model(config: ClassificationConfig, labels: tuple[str, ...], vocabulary: int, pad: int, unknown: int) -> Tfidf:
    special = {"vocab": vocabulary, "labels": labels, "pad": pad, "unknown": unknown}
    model: Tfidf = build(preset_for_data("tfidf", ("tfidf",), config.model, special))
    return model

"""Pretraining run of BERT: loading of documents, training of the vocabulary, and training of the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, normalizers

from manyheads.analysis import costs
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.column import ConcatenatedTexts
from manyheads.data.readers.documents import BREAK, Documents
from manyheads.data.readers.splits import SplitData
from manyheads.data.sources.running_text import DocumentSource
from manyheads.data.text.pretraining import PretrainingData, Special, TokenizedDocuments, continuations
from manyheads.data.text.tokenizers import BERT_TOKENS, train_wordpiece
from manyheads.errors import UserError
from manyheads.models.bert import Bert, Head
from manyheads.models.presets import build, preset_for_data
from manyheads.runs.estimate import Plan
from manyheads.runs.fine_tuning import start_bert
from manyheads.runs.run import Job, Run, carry_out, located, log_warnings
from manyheads.tasks.masked_words.objective import MaskedLMObjective
from manyheads.tasks.masked_words.recipes import PretrainingConfig


def train(config: PretrainingConfig, run: Run) -> dict[str, Any] | None:
    source = DocumentSource(**located(config, run), column=config.column, cache_folder=run.out / "state" / "tokens")

    def plan() -> Plan:
        model = planned_model(config) if run.init is None else start_bert(run, _head(config))[0]
        _check_length(config, model)
        return Plan(model, config.batch_tokens)

    def build(splits: SplitData[Documents], compute: ComputeConfig) -> Job[Documents]:
        if config.next_sentence and len(splits.validation) < 2:
            raise UserError(
                f"{config.data}: found 1 validation document, but pairs need two: "
                "give validation=PATH or next_sentence=false"
            )
        task = _task(config, run, splits, compute)
        return Job(
            task.model, config.training, lambda held: {}, task, flops=_flops(task),
            record={"rules": asdict(config.rules)},
        )  # fmt: skip

    return carry_out(run, config, source, plan, build, may_change=("column",))


def planned_model(config: PretrainingConfig) -> Bert:
    """Return the model on the meta device, for a vocabulary of the full requested size."""
    with torch.device("meta"):
        return build(_model_config(config, config.vocabulary))


def _model_config(config: PretrainingConfig, vocab: Any, **special: Any) -> Any:
    return preset_for_data(config.preset, ("bert",), config.model, {"vocab": vocab, **special, "head": _head(config)})


def _head(config: PretrainingConfig) -> Head:
    return "pretraining" if config.next_sentence else "masked_lm"


def _task(
    config: PretrainingConfig, run: Run, splits: SplitData[Documents], compute: ComputeConfig
) -> MaskedLMObjective:
    """Build the training task, with a new model and vocabulary, or with those of the model that `--init` names."""
    if run.init is None:
        tokenizer = wordpiece(ConcatenatedTexts(splits.train.documents), config.vocabulary, lowercase=config.lowercase)
        # The tokenizer replaces line breaks by spaces, as in the training documents, because users fine-tune the model
        # on whole texts.
        breaks = normalizers.Replace(Regex(BREAK), " ")
        tokenizer.normalizer = normalizers.Sequence([breaks, tokenizer.normalizer])
        sizes = {"vocab": tokenizer.get_vocab_size(), "pad": tokenizer.token_to_id(BERT_TOKENS[0])}
        model = build(_model_config(config, **sizes))
    else:
        model, tokenizer = start_bert(run, _head(config))
        # If a text contains the characters "[MASK]", they are read as plain text, not as a mask.
        tokenizer.encode_special_tokens = True
    _check_length(config, model)
    special, seed = Special.of(tokenizer), config.training.seed
    inner = continuations(tokenizer.get_vocab())

    def examples(data: Documents) -> PretrainingData:
        tokenized = TokenizedDocuments.of(data.documents, tokenizer, run.out / "state" / "tokens")
        return PretrainingData(tokenized, config.rules, special, model.config.vocab, seed=seed, inner=inner)

    return MaskedLMObjective(
        model, tokenizer, examples(splits.train), examples(splits.validation), compute=compute,
        batch_tokens=config.batch_tokens, seed=seed,
    )  # fmt: skip


def _check_length(config: PretrainingConfig, model: Bert) -> None:
    if config.length > model.config.max_positions:
        raise UserError(f"length is {config.length}: the model takes at most {model.config.max_positions} tokens")


def wordpiece(texts: Iterable[str], vocabulary: int, *, lowercase: bool) -> Tokenizer:
    """Train a WordPiece tokenizer. A vocabulary smaller than requested is logged as a warning."""
    with log_warnings():
        tokenizer = train_wordpiece(texts, vocabulary, lowercase=lowercase)
    return tokenizer


def _flops(task: MaskedLMObjective) -> float:
    """Return the number of training FLOPs per masked token.

    It is the cost of predicting one word, plus the encoder's cost for all tokens divided by the number of masked
    tokens.
    """
    examples = task.train.epoch(0)
    length = round(float(examples.lengths.mean()))
    masked = sum(task.train.rules.wanted(n) for n in examples.lengths.tolist())
    c = task.model.config
    with torch.device("meta"):
        encoder = Bert(replace(c, head="none"))
    per_token = costs.flops(encoder, length)["training"] / length
    words = costs.TRAINING_PASSES * 2 * (c.width * c.width + c.width * c.vocab)
    return words + per_token * float(examples.lengths.sum()) / masked

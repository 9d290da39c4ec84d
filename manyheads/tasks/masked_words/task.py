"""Pretraining of a BERT: its documents, its vocabulary and the model."""

from __future__ import annotations

from dataclasses import asdict, replace

import torch
from tokenizers import Regex, normalizers

from manyheads.analysis import costs
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.column import ConcatenatedTexts
from manyheads.data.readers.documents import BREAK, Documents
from manyheads.data.readers.splits import SplitData
from manyheads.data.sources.running_text import DocumentSource
from manyheads.data.text.pretraining import MASKS, PretrainingData, Special, continuations, mask_token
from manyheads.data.text.tokenized_documents import TokenizedDocuments
from manyheads.data.text.tokenizers import BERT_TOKENS, PAD, train_roberta_bpe, train_wordpiece
from manyheads.errors import UserError
from manyheads.models.bert import Bert, BertConfig, Head
from manyheads.models.presets import build, preset_for_data
from manyheads.runs.checks import log_warnings
from manyheads.runs.estimate import Plan
from manyheads.runs.fine_tuning import start_bert
from manyheads.runs.options import Run
from manyheads.runs.result import brief
from manyheads.runs.task import DataTask, Job
from manyheads.tasks.masked_words.objective import MaskedLMObjective
from manyheads.tasks.masked_words.recipes import PretrainingConfig


class Pretraining(DataTask[PretrainingConfig, Documents]):
    """Task of pretraining a BERT."""

    may_change = ("column",)
    _mask: str | None = MASKS[0]

    def planned_model(self) -> Bert:
        with torch.device("meta"):
            return build(_model_config(self.config, self.config.vocabulary))

    def plan(self) -> Plan:
        model = self.planned_model() if self.run.init is None else start_bert(self.run, _head(self.config))[0]
        _check_length(self.config, model)
        return Plan(model, self.config.batch_tokens)

    def data(self) -> DocumentSource:
        cache = self.run.out / "state" / "tokens"
        return DocumentSource(**self.located, column=self.config.column, cache_folder=cache)

    def build(self, splits: SplitData[Documents], compute: ComputeConfig) -> Job:
        config = self.config
        if config.next_sentence and len(splits.validation) < 2:
            raise UserError(
                f"{config.data}: found 1 validation document, but pairs need two: "
                "give validation=PATH or next_sentence=false"
            )
        objective = _objective(config, self.run, splits, compute)
        self._mask = mask_token(objective.tokenizer)
        record = {"rules": asdict(config.rules)}
        return Job(objective.model, config.training, objective, flops=_flops(objective), record=record)

    def example(self, held: Documents) -> list[str]:
        return ["fill", f"{brief(held.documents[0]).rpartition(' ')[0]} {self._mask}"]


def _model_config(config: PretrainingConfig, vocab: int, **special: int | None) -> BertConfig:
    return preset_for_data(
        config.preset, ("bert", "roberta"), config.model, {"vocab": vocab, **special, "head": _head(config)}
    )


def _head(config: PretrainingConfig) -> Head:
    return "pretraining" if config.next_sentence else "masked_lm"


def _objective(
    config: PretrainingConfig, run: Run, splits: SplitData[Documents], compute: ComputeConfig
) -> MaskedLMObjective:
    """Return the objective with a new model and vocabulary, or with those of the model that `--init` names."""
    if run.init is None:
        train_vocabulary = train_wordpiece if config.tokenizer == "wordpiece" else train_roberta_bpe
        texts = ConcatenatedTexts(splits.train.documents)
        with log_warnings():  # Log a warning if the vocabulary is smaller than requested.
            tokenizer = train_vocabulary(texts, config.vocabulary, lowercase=config.lowercase)
        # The tokenizer replaces line breaks by spaces, as in the training documents, because users fine-tune the model
        # on whole texts.
        normalizer = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
        tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(Regex(BREAK), " "), *normalizer])
        pad = tokenizer.token_to_id(BERT_TOKENS[0] if config.tokenizer == "wordpiece" else PAD)
        model = build(_model_config(config, tokenizer.get_vocab_size(), pad=pad))
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


def _flops(objective: MaskedLMObjective) -> float:
    """Return the number of training FLOPs per masked token.

    These are the FLOPs of predicting one word, plus the encoder's FLOPs for all tokens divided by the number of masked
    tokens.
    """
    examples = objective.train.epoch(0)
    length = round(float(examples.lengths.mean()))
    masked = sum(objective.train.rules.wanted(n) for n in examples.lengths.tolist())
    c = objective.model.config
    with torch.device("meta"):
        encoder = Bert(replace(c, head="none"))
    per_token = costs.training_flops(encoder, length) / length
    words = costs.TRAINING_PASSES * 2 * (c.width * c.width + c.width * c.vocab)
    return words + per_token * float(examples.lengths.sum()) / masked

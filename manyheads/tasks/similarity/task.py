"""Task of training embeddings: the pairs, the encoder and its scores."""

from __future__ import annotations

import logging
from itertools import chain

import torch
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.analysis import costs
from manyheads.core.runtime import ComputeConfig
from manyheads.data.readers.splits import SplitData
from manyheads.data.readers.text_pairs import TextPairs
from manyheads.data.sources.corpora import TextPairSource
from manyheads.data.text.tokenizers import BERT_TOKENS, train_wordpiece
from manyheads.errors import UserError
from manyheads.interop.sentences import Pool, SentenceEncoder
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.presets import build, preset_for_data
from manyheads.runs.checks import log_warnings
from manyheads.runs.estimate import Plan
from manyheads.runs.fine_tuning import dropout_rates, fine_tuning, start, tokenizer_of
from manyheads.runs.options import Run
from manyheads.runs.result import brief
from manyheads.runs.task import DataTask, Job
from manyheads.tasks.similarity.objective import EmbeddingObjective
from manyheads.tasks.similarity.predictor import Encoder
from manyheads.tasks.similarity.recipes import EmbeddingConfig
from manyheads.training.record import Metrics

logger = logging.getLogger(__name__)


class Embedding(DataTask[EmbeddingConfig, TextPairs]):
    """Task of training an encoder of texts."""

    def planned_model(self) -> Bert:
        with torch.device("meta"):
            model: Bert = build(_model_config(self.config, self.config.vocabulary))
        return model

    def plan(self) -> Plan:
        model = self.planned_model() if self.run.init is None else _initial_model(self.run)[0]
        return Plan(model, self.config.batch_tokens)

    def data(self) -> TextPairSource:
        return TextPairSource(**self.located, columns=self.config.columns, size=self.config.size)

    def build(self, splits: SplitData[TextPairs], compute: ComputeConfig) -> Job:
        config, run = self.config, self.run
        if splits.train.kind == "pairs" and config.batch_items < 2:
            raise UserError(
                "batch_items is 1: expected 2 or more, because the other pairs of a batch are the negatives"
            )
        if splits.train.scores:
            run.refuse(("temperature",), "no effect on pairs with scores: leave it out")
        model, tokenizer, own = _new_model(config, splits.train) if run.init is None else _initial_model(run)
        limits = (model.config.max_positions, own.max_tokens, config.max_length)
        objective = EmbeddingObjective(
            model, tokenizer, splits.train, splits.validation, compute=compute, batch_tokens=config.batch_tokens,
            seed=config.training.seed, batch_items=config.batch_items, max_length=min(filter(None, limits)),
            truncate=config.truncate, pool=_pooling(config, run, own, tokenizer), temperature=config.temperature,
        )  # fmt: skip
        mean_lengths = objective.lengths.mean(1)
        flops = sum(costs.training_flops(model, round(length)) for length in mean_lengths.tolist())
        record = {"truncate": config.truncate, "pool": objective.pool, "pairs": splits.train.kind}
        return Job(model, fine_tuning(config.training, run, "all"), objective, flops=flops, record=record)

    def score(self, held: TextPairs, compute: ComputeConfig) -> Metrics:
        encoder = Encoder(directory.load(self.run.out), compute)
        return encoder.evaluate(held, truncate=self.config.truncate).metrics

    def example(self, held: TextPairs) -> list[str]:
        return ["rerank", brief(held.texts[:1]), *(brief([text]) for text in held.pairs[:2])]


def _model_config(config: EmbeddingConfig, vocab: int, **pad: int | None) -> BertConfig:
    made: BertConfig = preset_for_data(config.preset, ("bert",), config.model, {"vocab": vocab, **pad, "head": "none"})
    return made


def _new_model(config: EmbeddingConfig, train: TextPairs) -> tuple[Bert, Tokenizer, SentenceEncoder]:
    """Return a new BERT with a vocabulary of the training texts."""
    with log_warnings():
        tokenizer = train_wordpiece(chain(*train.sides), config.vocabulary)
    model: Bert = build(_model_config(config, tokenizer.get_vocab_size(), pad=tokenizer.token_to_id(BERT_TOKENS[0])))
    return model, tokenizer, SentenceEncoder()


def _initial_model(run: Run) -> tuple[Bert, Tokenizer, SentenceEncoder]:
    """Return the BERT of `--init` without a head, its tokenizer, and its settings of sentence-transformers."""
    model, loaded = start(run, Bert, "BERT's weights", head="none", labels=(), **dropout_rates(run))
    if loaded.sentences.prompts:
        prompts = ", ".join(loaded.sentences.prompts)
        logger.warning(f"the prompts of {run.init} ({prompts}) are not used in training, and not saved with the model")
    return model, loaded.sentences.tokenizer(tokenizer_of(loaded)), loaded.sentences


def _pooling(config: EmbeddingConfig, run: Run, own: SentenceEncoder, tokenizer: Tokenizer) -> Pool:
    """Return the pooling of the user or of the initial model. Raises UserError if the model cannot compute it."""
    if config.pool is None and own.fault:
        raise UserError(f"{own.fault}. Choose a pooling of the last states yourself, with pool=mean or pool=first")
    pool = config.pool or own.pool
    if pool == "first" and not tokenizer.num_special_tokens_to_add(is_pair=False):
        raise UserError(
            f"pool=first reads the state of the special token before a text, but the tokenizer of {run.init} adds "
            "none: use pool=mean"
        )
    return pool

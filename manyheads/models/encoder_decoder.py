"""Base of the encoder-decoders: settings, embeddings and output projection, which translators of all papers share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from torch import Tensor, nn

from manyheads.core.config import Below, Config, Length, Rate, Size, Vocabulary
from manyheads.core.interface import Generates, S
from manyheads.core.layers import TokenEmbedding
from manyheads.errors import UserError

SourceId = Annotated[int, Below("source_vocab")]
TargetId = Annotated[int, Below("target_vocab")]


@dataclass(frozen=True)
class EncoderDecoderConfig(Config):
    """Settings of every encoder-decoder. Vocabulary sizes come from the data, other values from a preset or the user.

    width          width of the embeddings, and of the states before the output projection
    tie            matrices that are shared. "all" shares source embedding, target embedding and output (Vaswani 2017,
                   section 3.4); "target" shares target embedding and output
    output_bias    if True, a bias is added to the logits
    max_positions  maximum number of tokens of a text
    dropout        dropout rate; each model states where it applies
    start          token that starts decoding; in Marian, the padding token
    source_pad     padding token of the source, if source and target have separate vocabularies
    """

    source_vocab: Vocabulary
    target_vocab: Vocabulary
    pad: TargetId
    end: TargetId
    start: TargetId
    width: Size = 512
    tie: Literal["all", "target", "none"] = "all"
    output_bias: bool = False
    max_positions: Length = 512
    dropout: Rate = 0.1
    source_pad: SourceId | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_vocabularies(self)


def check_vocabularies(config: EncoderDecoderConfig) -> None:
    """Raise UserError if the settings share a matrix or a padding token between two different vocabularies.

    Sharing requires that source and target have the same vocabulary.
    """
    source, target = config.source_vocab, config.target_vocab
    if config.tie == "all" and source != target:
        raise UserError(
            f"model.tie=all needs one vocabulary, found {source} source and {target} target tokens: train a joint"
            " vocabulary, or use model.tie=target"
        )
    if config.source_pad is None and config.pad >= source:
        raise UserError(f"pad is {config.pad}, but the source vocabulary has only {source} tokens: set source_pad")


E_co = TypeVar("E_co", bound=EncoderDecoderConfig, covariant=True)


class EncoderDecoder(Generates[E_co, S]):
    """Base class of encoder-decoders. Source and target tokens in, logits over the target vocabulary out.

    A subclass builds its layers between the embeddings, which the constructor builds, and the call of `add_output`.

    needs_lengths  True if the states of real target tokens depend on the padding after them: `hidden` then also takes
                   `target_lengths`, the number of real tokens of each row, (B,)
    """

    output: nn.Linear | None
    needs_lengths: bool = False

    def __init__(self, config: E_co, *, scaled: bool = True) -> None:
        """Build the embeddings, which are multiplied by sqrt(D) if `scaled`."""
        super().__init__(config, pad=config.pad, max_positions=config.max_positions)
        c = config
        self.source_pad = c.pad if c.source_pad is None else c.source_pad
        self.source_embedding = TokenEmbedding(c.source_vocab, c.width, self.source_pad, scaled=scaled)
        self.target_embedding = (
            self.source_embedding if c.tie == "all" else TokenEmbedding(c.target_vocab, c.width, c.pad, scaled=scaled)
        )

    def add_output(self) -> None:
        """Build the output projection, which is the target embedding unless `tie` is "none", and its bias."""
        c = self.config
        self.output = nn.Linear(c.width, c.target_vocab, bias=False) if c.tie == "none" else None
        self.output_bias = (
            nn.Parameter(self.target_embedding.weight.new_zeros(c.target_vocab)) if c.output_bias else None
        )

    def forward(self, source: Tensor, source_lengths: Tensor | None, target: Tensor) -> Tensor:
        """Return the logits (B, Tt, V) of the next tokens for source (B, Ts) and target (B, Tt).

        The target begins with the start token. The source lengths, (B,), are the number of real tokens of each row.
        """
        return self.project(self.hidden(source, source_lengths, target))

    @property
    def output_weight(self) -> Tensor:
        """Return the matrix of the output projection, (V, D), which may be shared with the embeddings."""
        return self.target_embedding.weight if self.output is None else self.output.weight


TranslationModel: TypeAlias = EncoderDecoder[EncoderDecoderConfig, Any]  # encoder-decoder with any type of cache

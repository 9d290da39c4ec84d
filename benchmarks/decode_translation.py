"""Transformer base (6 + 6 layers, 512 wide, 10,000 words): target tokens a second, of sources of 20 tokens.

Every translation has exactly 30 tokens. A bias of the output keeps the end away until then, on both sides: the
thirtieth of ours is the end, the peer's another word; both take 30 steps. Beams are ranked with that last token, so
that with several another hypothesis may be the best.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.ceilings import Ceilings
from benchmarks.ours import compiled, generator, precisions, seeded
from benchmarks.peers import ctranslate2
from benchmarks.work import Prepared, Side, Work
from manyheads.analysis import costs
from manyheads.generation import beam_search, greedy
from manyheads.models.transformer import Transformer
from manyheads.tasks.translation.decoding import WORKER_ROWS

END = 0  # as in Marian's vocabularies, whose last id is the padding token that decoding begins from
OTHERS = "share of tokens that PyTorch in float32 does not choose; CTranslate2 ranks beams with another last token"
NEVER = -50.0  # the bias of what is not to be chosen; larger ones would cost the scores of beams their digits


@dataclass(frozen=True)
class Translating:
    """A batch of sentences, decoded with a number of beams (1 is greedy)."""

    sentences: int
    beam: int
    source: int = 20
    target: int = 30
    vocabulary: int = 10_000
    preset: str = "transformer/base"

    def model(self) -> Transformer:
        v = self.vocabulary
        settings = {"source_vocab": v, "target_vocab": v, "pad": v - 1, "end": END, "start": v - 1}
        model: Transformer = seeded(self.preset, output_bias=True, **settings)
        assert model.output_bias is not None
        with torch.no_grad():
            model.output_bias[[END, v - 1]] = NEVER
            model.source_embedding.weight[v - 1] = 0.0
        return model

    def inputs(self) -> Tensor:
        """(B, Ts) ids, the last of each the end."""
        ids = torch.randint(1, self.vocabulary - 1, (self.sentences, self.source), generator=generator())
        ids[:, -1] = END
        return ids


def ours(case: Translating, setting: str, threads: int) -> Prepared:
    source = case.inputs()
    lengths = torch.full((case.sentences,), case.source)
    model = compiled(case.model(), setting, threads)
    c = model.config
    how: dict[str, Any] = {"start": c.start, "end": c.end, "suppress": (c.pad,), "reduce": model.reduce}

    def part(rows: list[int]) -> list[list[int]]:
        with torch.inference_mode(), model.compute.autocast():
            cache, limits = (
                model.start(source[rows], lengths[rows], case.target),
                torch.full((len(rows),), case.target - 1),
            )
            if case.beam == 1:
                return [hypothesis.tokens for hypothesis in greedy(model.step, cache, **how, limits=limits)]
            return [best[0].tokens for best in beam_search(model.step, cache, **how, limits=limits, beam=case.beam)]

    def translate() -> list[list[int]]:
        """As `tasks.translation.decoding.decode`, which stops at the end of a sentence."""
        return model.map_parts(part, [*range(case.sentences)], -(-WORKER_ROWS // case.beam))

    def run() -> None:
        translate()

    return Prepared(run, translate())


def with_ctranslate2(case: Translating, setting: str, threads: int) -> Prepared:
    model = case.model()
    names = ctranslate2.token_names(model)
    ids = {name: number for number, name in enumerate(names)}
    source = [[names[token] for token in row] for row in case.inputs().tolist()]
    with tempfile.TemporaryDirectory() as folder:
        translator = ctranslate2.translator(model, setting, threads, folder)
    batch = -(-case.sentences // translator.num_translators)

    def translate() -> list[list[int]]:
        results = translator.translate_batch(
            source, beam_size=case.beam, max_batch_size=batch, min_decoding_length=case.target,
            max_decoding_length=case.target,
        )  # fmt: skip
        return [[ids[token] for token in result.hypotheses[0]] for result in results]

    def run() -> None:
        translate()

    translations = translate()
    assert all(len(tokens) == case.target for tokens in translations)
    return Prepared(run, [tokens[:-1] for tokens in translations])


def amount(case: Translating) -> int:
    return case.sentences * case.target


def least(case: Translating, precision: str, ceilings: Ceilings) -> float:
    """The encoder's weights are read once, and those that make keys and values of the source; the decoder's others and
    the output's at every step, and with them the keys and values of the source, which beams share, and, half of them on
    average, of the target. The products of the former are made once a sentence, those of the latter for every beam."""
    model = case.model()
    parts = costs.parameters(model)
    once = ("encoder", "decoder.cross.key", "decoder.cross.value")
    read_once = sum(size for part, size in parts.items() if part.startswith(once))
    read = sum(size for part, size in parts.items() if part.startswith("decoder") and not part.startswith(once))
    read += model.output_weight.numel()
    memory = costs.memory(model)
    hypotheses = case.sentences * (1 + case.beam * (case.target - 1)) / case.target  # at the first step one
    of_source = case.sentences * memory["cache_per_source_token"] * case.source
    of_target = hypotheses * memory["cache_per_token"] * case.target / 2
    operations = costs.flops(model, case.source, case.target)
    made_once = sum(count for part, count in operations["parts"].items() if part.startswith(once))
    ahead = operations["parts"]["decoder.scores"] * (1 - 1 / case.target) / 2  # scores of what comes later
    made = operations["forward"] - made_once - ahead
    reading = ceilings.least(precision, read_once, case.sentences * made_once)
    return reading + ceilings.least(
        precision, case.target * (read + (of_source + of_target) / costs.FLOAT32), hypotheses * made
    )


def tokens_apart(reference: list[list[int]], output: list[list[int]]) -> float:
    """The share of positions with another token."""
    pairs = [(a, b) for one, other in zip(reference, output, strict=True) for a, b in zip(one, other, strict=True)]
    return sum(a != b for a, b in pairs) / len(pairs)


WORK = Work(
    unit="tokens/s",
    cases={
        "1 sentence, greedy": Translating(1, 1), "1 sentence, beam 4": Translating(1, 4),
        "32 sentences, greedy": Translating(32, 1), "32 sentences, beam 4": Translating(32, 4),
    },
    amount=amount, least=least, ours=Side(precisions(), ours),
    peers={"ctranslate2": Side(ctranslate2.settings(), with_ctranslate2)},
    error=tokens_apart, error_is=OTHERS,
)  # fmt: skip

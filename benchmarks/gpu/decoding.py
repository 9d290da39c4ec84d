"""Greedy decoding in bf16: our models as predictors run them, next to `generate` of transformers.

The other side has all weights in bf16, once with its default cache, and once with a static cache, for which `generate`
compiles the model on a GPU. Every text has the same number of new tokens; the time includes the prompts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from benchmarks import decode_gpt2, decode_translation
from benchmarks.decode_gpt2 import CHECKED, Decoding
from benchmarks.decode_translation import Translating, tokens_apart
from benchmarks.gpu.session import Session
from benchmarks.ours import seeded
from benchmarks.peers import transformers as hugging_face
from benchmarks.work import RELATIVE, relative_error
from manyheads.generation import Sampling, beam_search, greedy, sample
from manyheads.inference import CompiledModel, compile_model

# sides and the seconds that each takes at least, with a static cache to compile; the last is the first to be left out
ENGINES = (("ours", 3.0), ("transformers static", 15.0), ("transformers", 5.0))


def gpt2(session: Session) -> None:
    sizes: dict[str, Any] = {"prompt": 5, "new": 8, "preset": "gpt2/nano"} if session.tiny else {}
    cases = [Decoding(batch, **sizes) for batch in ((1, 4) if session.tiny else (1, 16, 64, 256))]
    references = [_gpt2_logits(session, case) for case in cases]
    for engine, seconds in ENGINES:
        for case, reference in zip(cases, references, strict=True):

            def measure(
                case: Decoding = case, reference: Tensor = reference, engine: str = engine
            ) -> Mapping[str, Any]:
                if engine == "ours":
                    figures, logits = _our_gpt2(session, case)
                else:
                    figures, logits = _their_gpt2(session, case, static="static" in engine)
                limit = decode_gpt2.amount(case) / decode_gpt2.least(case, "bf16", session.rates)
                error = relative_error(reference, logits)
                return {"figures": figures, "error": error, "error_is": RELATIVE, "limit": limit}

            name = engine.replace(" static", "") + " bf16" + (" static, compiled" if "static" in engine else "")
            where = {"work": "decode-gpt2", "case": f"batch {case.batch}", "unit": "tokens/s"}
            session.attempt(where, name, measure, seconds)


def _gpt2_logits(session: Session, case: Decoding) -> Tensor:
    """Those of plain PyTorch in float32, behind the prompts and CHECKED tokens more."""
    model = seeded(case.preset).to(session.device)
    with session.plain():
        logits: Tensor = model(case.inputs(model.config.vocab).to(session.device))[:, -1].float().cpu()
        return logits


def _our_gpt2(session: Session, case: Decoding) -> tuple[list[float], Tensor]:
    model = compile_model(seeded(case.preset).to(session.device), session.compute())
    given = case.inputs(model.config.vocab)
    prompts = given[:, : case.prompt].tolist()
    how: dict[str, Any] = {"context": model.config.max_positions, "limits": [case.new] * case.batch,
                           "seeds": [0] * case.batch}  # fmt: skip

    def run() -> float:
        with torch.inference_mode(), model.compute.autocast():
            deque(sample(model.start, model.step, prompts, Sampling(temperature=0), **how), maxlen=0)
        return decode_gpt2.amount(case)

    with torch.inference_mode(), model.compute.autocast():
        cache = model.start(case.batch, case.prompt + CHECKED)
        logits = decode_gpt2._fed(lambda tokens: model.step(tokens, cache)[:, -1], given.to(session.device))
    return session.figures(run), logits.float().cpu()


def _their_gpt2(session: Session, case: Decoding, *, static: bool) -> tuple[list[float], Tensor]:
    model = seeded(case.preset)
    given = case.inputs(model.config.vocab).to(session.device)
    other = hugging_face.twin(model, "AutoModelForCausalLM", "bf16").eval().to(session.device)
    other.generation_config.eos_token_id = None
    prompts = given[:, : case.prompt]
    how = {"cache_implementation": "static"} if static else {}
    settings = {"attention_mask": torch.ones_like(prompts), "max_new_tokens": case.new, "do_sample": False, **how}

    def run() -> float:
        with session.plain("bf16"):
            other.generate(prompts, **settings)
        return decode_gpt2.amount(case)

    with session.plain("bf16"):
        logits = other(given).logits[:, -1].float().cpu()
    return session.figures(run), logits


def translation(session: Session) -> None:
    sizes: dict[str, Any] = ({"source": 4, "target": 6, "vocabulary": 50, "preset": "transformer/tiny"} if session.tiny
                             else {"source": 20, "target": 30, "vocabulary": 37_000})  # fmt: skip
    cases = [Translating(sentences, beam, **sizes) for sentences, beam in ((1, 1), (64, 1), (64, 4))]
    references = [_our_translation(session, case, None) for case in cases]
    for engine, seconds in ENGINES:
        for case, (_, reference) in zip(cases, references, strict=True):

            def measure(
                case: Translating = case, reference: Any = reference, engine: str = engine
            ) -> Mapping[str, Any]:
                if engine == "ours":
                    figures, tokens = _our_translation(session, case, "bf16")
                else:
                    figures, tokens = _their_translation(session, case, static="static" in engine)
                limit = decode_translation.amount(case) / decode_translation.least(case, "bf16", session.rates)
                return {"figures": figures, "error": tokens_apart(reference, tokens), "limit": limit,
                        "error_is": "share of tokens that PyTorch in float32 does not choose"}  # fmt: skip

            name = engine.replace(" static", "") + " bf16" + (" static, compiled" if "static" in engine else "")
            described = f"{case.sentences} sentence{'s' * (case.sentences > 1)}, "
            where = {"work": "decode-translation", "unit": "tokens/s",
                     "case": described + ("greedy" if case.beam == 1 else f"beam {case.beam}")}  # fmt: skip
            session.attempt(where, name, measure, seconds)


def _our_translation(session: Session, case: Translating, precision: str | None) -> tuple[list[float], list[list[int]]]:
    """precision None: plain PyTorch in float32, which is not timed."""
    compute = session.compute(precision or "float32")
    prepared = CompiledModel if precision is None else compile_model
    model: CompiledModel[Any] = prepared(case.model().to(session.device), compute)
    source = case.inputs().to(session.device)
    lengths = torch.full((case.sentences,), case.source, device=session.device)
    c = model.config
    how: dict[str, Any] = {"start": c.start, "end": c.end, "suppress": (c.pad,), "reduce": model.reduce,
                           "limits": torch.full((case.sentences,), case.target - 1)}  # fmt: skip

    def translate() -> list[list[int]]:
        with torch.inference_mode(), model.compute.autocast():
            cache = model.start(source, lengths, case.target)
            if case.beam == 1:
                return [hypothesis.tokens for hypothesis in greedy(model.step, cache, **how)]
            return [best[0].tokens for best in beam_search(model.step, cache, **how, beam=case.beam)]

    def run() -> float:
        translate()
        return decode_translation.amount(case)

    return [] if precision is None else session.figures(run), translate()


def _their_translation(session: Session, case: Translating, *, static: bool) -> tuple[list[float], list[list[int]]]:
    model = case.model()
    other = hugging_face.twin(model, "AutoModelForSeq2SeqLM", "bf16").eval().to(session.device)
    source = case.inputs().to(session.device)
    how = {"cache_implementation": "static"} if static else {}
    settings = {"attention_mask": torch.ones_like(source), "num_beams": case.beam, "do_sample": False,
                "max_new_tokens": case.target, "min_new_tokens": case.target, **how}  # fmt: skip

    def translate() -> Any:
        with session.plain("bf16"):
            return other.generate(source, **settings)

    def run() -> float:
        translate()
        return decode_translation.amount(case)

    figures = session.figures(run)
    tokens = translate()[:, 1 : case.target].tolist()  # without the start, and without what stands for the end
    return figures, tokens

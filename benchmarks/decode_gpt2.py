"""GPT-2 124M, greedy: tokens a second from the prompts to the last new token, the reading of the prompts included."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.ceilings import Ceilings
from benchmarks.ours import compiled, computing, generator, precisions, seeded
from benchmarks.peers import llama_cpp, openvino
from benchmarks.peers import transformers as hugging_face
from benchmarks.work import RELATIVE, Prepared, Side, Work, relative_error
from manyheads.analysis import costs
from manyheads.generation import Sampling, sample
from manyheads.inference import BOUNDS
from manyheads.models.gpt import GPT

CHECKED = 3  # tokens behind the prompt, after which the sides' logits are compared


@dataclass(frozen=True)
class Decoding:
    """`batch` prompts of so many random tokens, each continued by `new` tokens."""

    batch: int
    prompt: int = 64
    new: int = 128
    preset: str = "gpt2/124m"

    def inputs(self, vocabulary: int) -> Tensor:
        """(B, prompt + CHECKED) ids: the prompts, and what is given behind them to compare the sides."""
        return torch.randint(vocabulary, (self.batch, self.prompt + CHECKED), generator=generator())


def ours(case: Decoding, setting: str, threads: int) -> Prepared:
    model = seeded(case.preset)
    given = case.inputs(model.config.vocab)
    model = compiled(model, setting, threads)
    prompts, count = given[:, : case.prompt].tolist(), case.batch
    how: dict[str, Any] = {"context": model.config.max_positions, "limits": [case.new] * count, "seeds": [0] * count}

    def run() -> None:
        with torch.inference_mode(), model.compute.autocast():
            deque(sample(model.start, model.step, prompts, Sampling(temperature=0), **how), maxlen=0)

    with torch.inference_mode(), model.compute.autocast():
        cache = model.start(count, given.shape[1])
        logits = _fed(lambda tokens: model.step(tokens, cache)[:, -1], given)
    return Prepared(run, logits.float().numpy())


def with_openvino(case: Decoding, setting: str, threads: int) -> Prepared:
    model = seeded(case.preset)
    given = case.inputs(model.config.vocab).numpy()
    return _stepping(case, given, *openvino.decoder(model, setting, threads))


def with_transformers(case: Decoding, setting: str, threads: int) -> Prepared:
    model = seeded(case.preset)
    given = case.inputs(model.config.vocab)
    other = hugging_face.twin(model, "AutoModelForCausalLM", setting).eval()
    other.generation_config.eos_token_id = None
    prompts = given[:, : case.prompt]

    def run() -> None:
        with torch.inference_mode(), computing(threads, "float32"):
            other.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=case.new, do_sample=False)

    with torch.inference_mode(), computing(threads, "float32"):
        logits = other(given).logits[:, -1]
    return Prepared(run, logits.float().numpy())


def with_llama_cpp(case: Decoding, setting: str, threads: int) -> Prepared:
    model = seeded(case.preset)
    given = case.inputs(model.config.vocab).numpy()
    capacity = case.prompt + case.new + CHECKED
    return _stepping(case, given, *llama_cpp.decoder(model, case.batch, capacity, threads))


def _stepping(case: Decoding, given: Any, forget: Callable[[], None], step: Callable[[Any], Any]) -> Prepared:
    """A peer that is called for every token; `step` takes tokens (B, T) and gives the logits (B, V) behind them."""

    def run() -> None:
        forget()
        last = step(given[:, : case.prompt]).argmax(-1)[:, None]
        for _ in range(case.new - 1):
            last = step(last).argmax(-1)[:, None]

    forget()
    return Prepared(run, _fed(step, given))


def _fed(step: Callable[[Any], Any], given: Any) -> Any:
    """The logits (B, V) behind the prompts and, one at a time, CHECKED tokens more."""
    logits = step(given[:, :-CHECKED])
    for at in range(given.shape[1] - CHECKED, given.shape[1]):
        logits = step(given[:, at : at + 1])
    return logits


def amount(case: Decoding) -> int:
    return case.batch * case.new


def least(case: Decoding, precision: str, ceilings: Ceilings) -> float:
    """Return the work of a case: bytes read and matrix products.

    The prompts are read in one pass, with logits for their last positions. Every further step reads all weights, and
    the keys and values of every text, which include half of the new tokens on average. Keys and values have the
    precision of the weights.
    """
    model: GPT = costs.preset_model(case.preset)  # type: ignore[assignment]
    weights = sum(costs.parameters(model).values()) - model.positions.table.numel()
    kept = costs.memory(model)["cache_per_token"] / costs.FLOAT32 * case.batch
    steps, of_token = case.new - 1, costs.flops(model, 1)
    of_key, of_logits = of_token["parts"]["decoder.scores"], of_token["parts"]["output"]
    of_states = of_token["forward"] - of_logits - of_key
    of_prompt = case.prompt * of_states + case.prompt * (case.prompt + 1) / 2 * of_key + of_logits
    keys = case.prompt + case.new / 2  # that a step looks at, on average
    of_steps = steps * (of_states + keys * of_key + of_logits)
    numbers = steps * (weights + kept * keys)
    return ceilings.least(precision, weights, case.batch * of_prompt) + ceilings.least(
        precision, numbers, case.batch * of_steps
    )


WORK = Work(
    unit="tokens/s", cases={"batch 1": Decoding(1), "batch 16": Decoding(16)}, amount=amount, least=least,
    ours=Side(precisions(), ours),
    peers={
        "openvino": Side(openvino.DECODING, with_openvino),
        "llama.cpp": Side(llama_cpp.SETTINGS, with_llama_cpp),
        "transformers": Side(hugging_face.SETTINGS, with_transformers),
    },
    error=relative_error, error_is=RELATIVE, bounds=BOUNDS,
)  # fmt: skip

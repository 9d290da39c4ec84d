"""Recorded decoding steps: the same tokens as without, whatever happens to the rows of the cache."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from manyheads.core.runtime import prepare
from manyheads.core.tap import Tap
from manyheads.generation import Sampling, beam_search, greedy, sample
from manyheads.inference import graphs
from manyheads.inference.graphs import RecordedModel, compile_for_gpu
from manyheads.models.presets import build, preset

DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def seeded(name: str, device: str = "cpu", **settings: Any) -> Any:
    torch.manual_seed(0)
    return build(preset(name, **settings)).to(device).eval()


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every step that a recording has run."""
    found: list[int] = []
    replay = graphs._Recording.replay
    monkeypatch.setattr(graphs, "PATIENCE", 1)

    def counted(self: Any, tokens: Any, cache: Any) -> Any:
        found.append(cache.batch)
        return replay(self, tokens, cache)

    monkeypatch.setattr(graphs._Recording, "replay", counted)
    return found


def continued(model: Any, compute: Any) -> list[list[tuple[int, int]]]:
    """Prompts of unequal lengths, which end at different times."""
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
    with compute.autocast():
        steps = sample(model.start, model.step, prompts, Sampling(temperature=0), context=model.config.max_positions,
                       limits=[9, 4, 7], seeds=[0] * 3)  # fmt: skip
        return list(steps)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_recorded_steps_of_a_language_model_write_the_same_tokens(
    precision: Any, device: str, replays: list[int]
) -> None:
    model = seeded("gpt2/nano", device)
    compute = prepare(precision, device=device)
    compiled = compile_for_gpu(model, compute)
    wanted = continued(model, compute)
    assert continued(compiled, compute) == wanted
    assert set(replays) == {1, 2, 3}
    first = len(replays)
    assert continued(compiled, compute) == wanted
    assert len(replays) - first > first  # the recording takes over the memory, without a new one


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("beam", [1, 3])
def test_recorded_steps_of_a_translator_find_the_same_hypotheses(beam: int, device: str, replays: list[int]) -> None:
    model = seeded("transformer/tiny", device, source_vocab=40, target_vocab=40, pad=39, end=0, start=39)
    compute = prepare("float32", device=device)
    compiled = compile_for_gpu(model, compute)
    source, lengths = torch.arange(1, 13, device=device).view(3, 4), torch.tensor([4, 2, 3], device=device)
    how: dict[str, Any] = {"start": 39, "end": 0, "limits": torch.tensor([9, 5, 7]), "suppress": (39,)}

    def found(model: Any) -> Any:
        cache = model.start(source, lengths, 10)
        return greedy(model.step, cache, **how) if beam == 1 else beam_search(model.step, cache, **how, beam=beam)

    with torch.inference_mode():
        wanted = found(model)
        for _ in range(2):
            assert [tokens(h) for h in found(compiled)] == [tokens(h) for h in wanted]
    assert replays


def tokens(hypotheses: Any) -> Any:
    return [h.tokens for h in hypotheses] if isinstance(hypotheses, list) else hypotheses.tokens


@pytest.mark.parametrize("device", DEVICES)
def test_matrices_in_bf16_give_the_results_of_autocast(device: str) -> None:
    model = seeded("bert/tiny", device, vocab=50, head="none")
    compute = prepare("bf16", device=device)
    compiled = compile_for_gpu(model, replace(compute, precision="auto"))
    assert compiled.compute.precision == "bf16"
    ids, lengths = torch.randint(1, 50, (2, 7), device=device), torch.tensor([7, 5], device=device)
    with torch.inference_mode(), compute.autocast():
        assert torch.equal(compiled(ids, lengths), model(ids, lengths))
    assert next(model.parameters()).dtype == torch.float32
    assert {p.dtype for p in compiled.module.parameters()} == {torch.float32, torch.bfloat16}


def test_maps_are_recorded_by_the_plain_step(replays: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    compute = prepare(device="cpu")
    compiled = compile_for_gpu(seeded("gpt2/nano"), compute)
    assert isinstance(compiled, RecordedModel)
    monkeypatch.setattr(Tap, "is_active", True)
    continued(compiled, compute)
    assert not replays


def test_a_cache_that_is_used_keeps_its_memory(replays: list[int]) -> None:
    """Two texts in turn: the second does not take the memory of the first."""
    model = seeded("gpt2/nano")
    compiled = compile_for_gpu(model, prepare(device="cpu"))
    with torch.inference_mode():
        caches = [(compiled.start(1, 12), model.start(1, 12)) for _ in range(2)]
        for at, text in enumerate([0] * 4 + [1] * 4 + [0, 1] * 4):
            ours, plain = caches[text]
            given = torch.tensor([[1 + at]])
            assert torch.allclose(compiled.step(given, ours), model.step(given, plain), atol=1e-5)
    assert replays


def test_a_step_that_cannot_be_recorded_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def refuse(self: Any, *given: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs, "PATIENCE", 1)
    monkeypatch.setattr(graphs._Recording, "__init__", refuse)
    model, compute = seeded("gpt2/nano"), prepare(device="cpu")
    assert continued(compile_for_gpu(model, compute), compute) == continued(model, compute)
    assert [record.message for record in caplog.records] == [
        "the decoding step cannot be recorded as a CUDA graph and runs slower: operation not permitted when stream is "
        "capturing"
    ]

"""Lowered models, compared with the original in float64, in every precision that the processor supports."""

from __future__ import annotations

import importlib.util
import threading
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from manyheads.core.editing import edit
from manyheads.core.logits import reduce_logits
from manyheads.core.recording import record, tapped
from manyheads.core.runtime import prepare
from manyheads.core.tap import Place
from manyheads.generation import Sampling, beam_search, greedy, sample, score
from manyheads.inference import BOUNDS, check, compilation, compile_model
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.gpt import GPT, GPTConfig
from manyheads.models.transformer import Transformer, TransformerConfig
from manyheads.models.vit import ViT, ViTConfig

if importlib.util.find_spec("numba") is None:
    pytest.skip("the kernels are compiled by Numba (extra `fast`)", allow_module_level=True)

from manyheads.inference.kernels import processor

PRECISIONS = ["float32", *(["bf16"] if processor.HAS_BF16 else []), *(["int8"] if processor.HAS_INT8 else [])]
# of the root of the mean square, against float64
TOLERANCE = {"float32": 2e-6, "bf16": 1e-2, "int8": 4e-2}


@pytest.fixture(autouse=True)
def same_weights_and_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setenv("MANYHEADS_ROUTE", "kernels")  # wherever this machine would run a model otherwise


def seeded(model: torch.nn.Module) -> Any:
    """Set weights so large that every part of a model matters, and norms and biases unlike their initial values."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            size = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.3
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def off(got: Tensor, wanted: Tensor) -> float:
    return float((got.double() - wanted).norm() / wanted.norm())


def exact(model: Any, *inputs: Tensor | None) -> Tensor:
    try:
        with torch.no_grad():
            result: Tensor = model.double()(*inputs)
            return result
    finally:
        model.float()


def gpt(**settings: Any) -> GPT:
    sizes = {"vocab": 131, "width": 64, "layers": 2, "heads": 4, "max_positions": 128, **settings}
    return seeded(GPT(GPTConfig(**sizes)))


def translator(**settings: Any) -> Transformer:
    sizes = {
        "source_vocab": 97, "target_vocab": 97, "pad": 96, "end": 0, "start": 96, "width": 64, "encoder_layers": 2,
        "decoder_layers": 2, "encoder_heads": 4, "decoder_heads": 2, "encoder_feed_forward": 96,
        "decoder_feed_forward": 160, "max_positions": 64, **settings,
    }  # fmt: skip
    return seeded(Transformer(TransformerConfig(**sizes)))


def tokens(rows: int, length: int, below: int = 90) -> Tensor:
    return torch.randint(1, below, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "settings",
    [
        {}, {"norm": "post"}, {"bias": False}, {"activation": "relu"}, {"activation": "silu"}, {"activation": "gelu"},
        {"heads": 2}, {"heads": 8}, {"heads": 1, "width": 128}, {"heads": 2, "width": 24}, {"feed_forward": 100},
    ],
    ids=str,
)  # fmt: skip
def test_a_language_model_gives_equal_logits_whole_and_step_by_step(settings: dict[str, Any], precision: str) -> None:
    model, given = gpt(**settings), tokens(3, 75)
    fast = compile_model(model, prepare(precision, threads=2))  # type: ignore[arg-type]
    wanted = exact(model, given)
    with torch.inference_mode(), fast.compute.autocast():
        assert off(fast(given), wanted) < TOLERANCE[precision]
        cache = fast.start(3, 75)
        parts = [fast.step(part, cache) for part in given.split([40, 1, 1, 2, 3, 28], dim=1)]
        assert off(torch.cat(parts, 1), wanted) < TOLERANCE[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_permuted_rows_may_forget_their_last_positions(precision: str) -> None:
    model = gpt()
    fast = compile_model(model, prepare(precision, threads=2))  # type: ignore[arg-type]
    texts = tokens(3, 8)
    rows = [[*texts[row, :kept]] for row, kept in ((2, 6), (0, 5), (0, 3))]  # the remaining tokens of each text
    wanted = [exact(model, torch.stack([*row, texts[number, 6]])[None])[0, -1] for number, row in enumerate(rows)]
    with torch.inference_mode(), fast.compute.autocast():
        cache = fast.start(3, 32)
        fast.step(texts[:, :5], cache)
        cache.select(torch.tensor([2, 0, 0]))
        fast.step(texts[[2, 0, 0], 5:6], cache)
        cache.advance(torch.tensor([0, -1, -3]))
        got = fast.step(texts[:, 6:7], cache)[:, 0]
    assert off(got, torch.stack(wanted)) < TOLERANCE[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "settings", [{}, {"norm": "pre", "final_norm": True}, {"attention_bias": False}, {"tie": "none"}], ids=str
)
def test_a_translator_gives_equal_results(settings: dict[str, Any], precision: str) -> None:
    model = translator(**settings)
    fast = compile_model(model, prepare(precision, threads=2))  # type: ignore[arg-type]
    source, lengths, target = tokens(4, 33), torch.tensor([33, 5, 1, 20]), tokens(4, 9)
    wanted = exact(model, source, lengths, target)
    with torch.inference_mode(), fast.compute.autocast():
        cache = fast.start(source, lengths, 9)
        got = torch.cat([fast.step(part, cache) for part in target.split([1, 1, 1, 2, 4], dim=1)], 1)
    assert off(got, wanted) < TOLERANCE[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_skipping_padding_gives_equal_states(precision: str) -> None:
    model = seeded(Bert(BertConfig(vocab=101, width=64, layers=2, heads=4, feed_forward=128, head="none")))
    fast = compile_model(model, prepare(precision, threads=2))  # type: ignore[arg-type]
    given, lengths = tokens(5, 70), torch.tensor([70, 1, 13, 64, 7])
    wanted = exact(model, given, lengths)
    real = torch.arange(70) < lengths[:, None]
    with torch.inference_mode(), fast.compute.autocast():
        states = fast(given, lengths)
        alone = fast(given[2:3, :13])
    assert off(states[real], wanted[real]) < TOLERANCE[precision]
    assert not states[~real].any()
    assert torch.equal(states[2, :13], alone[0])  # other rows of the batch do not affect the result


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_image_model_with_layer_scale_gives_equal_results(precision: str) -> None:
    config = ViTConfig(
        labels=("a", "b", "c"), image_size=32, patch=8, width=64, layers=2, heads=4, feed_forward=128, layer_scale=0.5,
        qkv_bias=False,
    )  # fmt: skip
    model = seeded(ViT(config))
    images = torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    wanted = exact(model, images.double())
    fast = compile_model(model, prepare(precision, threads=2))  # type: ignore[arg-type]
    with torch.inference_mode(), fast.compute.autocast():
        assert off(fast(images), wanted) < TOLERANCE[precision]


@pytest.mark.parametrize("without", [["key"], ["query", "value"]], ids=str)
def test_a_block_with_partial_biases_is_not_compiled(without: list[str]) -> None:
    """One product computes queries, keys and values: a bias of some of them has no place in it."""
    model, given = gpt(), tokens(2, 9)
    blocks: Any = model.decoder.blocks
    for name in without:
        getattr(blocks[1].attention, name).bias = None
    fast = compile_model(model, prepare("float32", threads=2))
    with torch.inference_mode(), fast.compute.autocast():
        assert off(fast(given), exact(model, given)) < TOLERANCE["float32"]
    assert type(fast.module.decoder).__name__ == "Stack"


@pytest.mark.parametrize("normalization", ["batch", "none"])
def test_only_layer_norms_are_compiled(normalization: Literal["batch", "none"]) -> None:
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "width": 16, "encoder_heads": 2, "decoder_heads": 2}
    config = TransformerConfig(20, 20, pad=19, end=0, start=19, **sizes, normalization=normalization)  # type: ignore[arg-type]
    model, (source, target) = seeded(Transformer(config)), (tokens(2, 9) % 19, tokens(2, 7) % 19)
    wanted = exact(model, source, torch.tensor([9, 4]), target)
    fast = compile_model(model, prepare("float32", threads=2))
    with torch.inference_mode(), fast.compute.autocast():
        assert off(fast(source, torch.tensor([9, 4]), target), wanted) < TOLERANCE["float32"]
    assert {type(stack).__name__ for stack in (fast.module.encoder, fast.module.decoder)} == {"Stack"}


@pytest.mark.parametrize("beam", [1, 3])
def test_searches_equal_a_search_with_the_model(beam: int) -> None:
    model = translator()
    fast = compile_model(model, prepare("float32", threads=2))
    source, lengths = tokens(7, 12), torch.tensor([12, 3, 7, 12, 1, 9, 10])
    how: dict[str, Any] = {"start": 96, "end": 0, "limits": lengths + 5, "suppress": [96]}
    outputs = []
    for one in (model, fast):
        with torch.inference_mode(), fast.compute.autocast():
            cache = one.start(source, lengths, 18)
            if beam == 1:
                outputs.append([[h] for h in greedy(one.step, cache, **how)])
            else:
                outputs.append(beam_search(one.step, cache, **how, beam=beam, nbest=beam))
    for plain, lowered in zip(*outputs, strict=True):
        assert [h.tokens for h in lowered] == [h.tokens for h in plain]
        assert [h.score for h in lowered] == pytest.approx([h.score for h in plain], abs=1e-5)


@pytest.mark.parametrize("rows", [3, 200])  # few are looked at by one thread
def test_statistics_of_logits_match_the_logits(rows: int) -> None:
    fast = compile_model(translator(source_vocab=1000, target_vocab=1000), prepare("float32", threads=2))
    hidden = torch.randn(rows, fast.config.width, generator=torch.Generator().manual_seed(0))
    logits = fast.module.project(hidden)
    expected, found = reduce_logits(logits, (0, 999)), fast.reduce(logits.clone(), (0, 999))
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    torch.testing.assert_close(found[2], expected[2], atol=1e-5, rtol=0)


def test_scores_of_unequal_texts_equal_the_models() -> None:
    model, source = translator(), tokens(3, 8)
    fast = compile_model(model, prepare("float32"))
    targets = [[5, 7, 9], [4], [8, 8, 8, 8, 8]]
    totals = []
    for one in (model, fast):
        with torch.inference_mode():
            cache = one.start(source, None, 6)
            totals.append([h.log_probability for h in score(one.step, cache, targets, start=96, end=0)])
    assert totals[1] == pytest.approx(totals[0], abs=1e-5)

    writer = gpt(max_positions=16)  # beyond the context, texts continue from their second half
    quick = compile_model(writer, prepare("float32"))
    prompts = [[3, 4, 5], [6], [7, 8, 9, 10, 11, 12]]
    written = [
        list(sample(one.start, one.step, prompts, Sampling(temperature=0), context=16, limits=[20, 30, 5],
                    seeds=[0, 1, 2]))
        for one in (writer, quick)
    ]  # fmt: skip
    assert written[0] == written[1]


def test_recording_and_editing_use_the_models_own_values() -> None:
    model, given = gpt(), tokens(2, 9)
    fast = compile_model(model, prepare(PRECISIONS[-1]))  # type: ignore[arg-type]
    with torch.inference_mode(), prepare("float32").settings():
        with record(model) as maps:
            wanted = model(given)
        with record(fast.module) as seen:
            recorded = fast.module.hidden(given)
        assert torch.equal(recorded, model.hidden(given))
        for name, calls in maps.items():
            assert torch.equal(seen[name][0], calls[0])
        with edit(model) as change:  # the taps are shared
            change.zero("decoder.blocks.0.attention", heads=[1])
            assert torch.equal(fast.module.hidden(given), model.hidden(given))
            assert not torch.equal(model(given), wanted)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_residual_streams_of_networks_are_recorded_and_edited(precision: str) -> None:
    """Record and edit a lowered model under its module names and under those of the original model."""
    model, given = gpt(), tokens(2, 9)
    fast = compile_model(model, prepare(precision))  # type: ignore[arg-type]
    places: tuple[Place, ...] = ("feed_forward", "residual")
    with torch.inference_mode(), prepare("float32").settings():
        plain, quick = model.hidden(given), fast.module.hidden(given)
        for place in places:
            assert list(tapped(fast.module, place)) == list(tapped(model, place))
            for name in tapped(model, place):
                with record(fast.module, name, of=place) as seen, record(model, name, of=place) as wanted:
                    assert torch.equal(fast.module.hidden(given), plain)
                assert torch.equal(seen[name][0], wanted[name][0])
                for one in (model, fast.module):
                    with edit(one) as change:
                        do = change.feed_forward if place == "feed_forward" else change.residual
                        do(name, lambda part: -2 * part, positions=[3, -1])
                        assert torch.equal(edited := fast.module.hidden(given), model.hidden(given))
                    assert not torch.equal(edited, plain)
        assert torch.equal(fast.module.hidden(given), quick)  # and the fused function again


def test_threads_of_a_service_share_a_model() -> None:
    model, given = gpt(width=256, heads=4), tokens(8, 64)
    fast = compile_model(model, prepare("float32", threads=2))
    with torch.inference_mode():
        wanted = fast.module.hidden(given)
    wrong: list[int] = []

    def use() -> None:
        with torch.inference_mode():
            for _ in range(5):
                if not torch.equal(fast.module.hidden(given), wanted):
                    wrong.append(1)

    users = [threading.Thread(target=use) for _ in range(4)]
    for user in users:
        user.start()
    for user in users:
        user.join(60)
    assert not wrong
    assert not any(user.is_alive() for user in users)


def test_replaced_work_memory_has_the_requested_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both need more than there is, and the one with fewer rows is done last."""
    from manyheads.inference.kernels.packed import Workspace

    workspace, new = Workspace(1, 1, 1, 1, 1, 1, 1), Workspace._new

    def slow(self: Workspace, rows: int, work: int) -> Any:
        if rows == 10:
            monkeypatch.undo()
            assert len(workspace.of(99, 8, 1).qkv) == 99
        return new(self, rows, work)

    monkeypatch.setattr(Workspace, "_new", slow)
    assert len(workspace.of(10, 8, 1).qkv) == 10
    assert len(workspace.of(50, 8, 1).qkv) == 50


def test_abandoned_threads_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = gpt(width=256, heads=4), tokens(8, 64)
    fast = compile_model(model, prepare("float32", threads=2))
    from manyheads.inference import stack

    with torch.inference_mode():
        wanted = fast.module.hidden(given)
        kernel = stack.run

        def interrupted(thread: int, *arguments: Any) -> None:
            if thread == 0:
                raise KeyboardInterrupt  # the other thread is in the kernel, or will be
            kernel(thread, *arguments)

        monkeypatch.setattr(stack, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fast.module.hidden(given)
        monkeypatch.undo()
        assert torch.equal(fast.module.hidden(given), wanted)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_non_finite_weights_affect_only_their_outputs(precision: str) -> None:
    model = gpt()
    with torch.no_grad():
        blocks: Any = model.decoder.blocks
        blocks[1].feed_forward.contract.weight[3] = torch.nan
        blocks[0].attention.output.weight.zero_()
        model.embedding.weight[5] = 0.0
    fast = compile_model(model, prepare(precision))  # type: ignore[arg-type]
    with torch.inference_mode():
        assert fast(tokens(2, 5)).isnan().all()  # as the model: the norm spreads it
        with torch.no_grad():
            blocks[1].feed_forward.contract.weight[3] = 0.0
        assert compile_model(model, prepare(precision))(tokens(2, 5)).isfinite().all()  # type: ignore[arg-type]


def test_auto_selects_the_fastest_accurate_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = compile_model(gpt(), prepare("auto"))
    assert fast.precision == PRECISIONS[-1]
    monkeypatch.setitem(BOUNDS, "int8", 1e-9)
    monkeypatch.setitem(BOUNDS, "bf16", 1e-9)
    fast = compile_model(gpt(), prepare("auto"))
    assert fast.precision == "float32"
    plain = compile_model(torch.nn.Sequential(torch.nn.Linear(8, 8)), prepare("auto"))
    assert (plain.compute.precision, plain.precision) == ("float32", None)  # no stack that could be compared
    assert type(compile_model(translator(), prepare("auto")).module.decoder).__name__ == "FusedStack"


@pytest.mark.parametrize(("pays", "taken"), [(True, "bf16"), (False, "float32")])
def test_auto_avoids_bf16_where_float32_is_faster(pays: bool, taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "is_bf16_faster", lambda threads: pays)
    monkeypatch.setattr(compilation, "_can_fuse", lambda compute: False)  # a model that runs as it is
    assert compile_model(gpt(), prepare("auto", device="cpu")).compute.precision == taken


def test_int8_is_refused_where_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "HAS_INT8", False)
    with pytest.raises(ValueError, match=r"no 8-bit products.*use float32 or bf16, or auto"):
        check(prepare("int8", device="cpu"))
    with pytest.raises(ValueError, match="available only on a CPU, found device cuda"):
        check(prepare("int8", device="cuda"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs Numba: pip install 'manyheads\[fast\]'"):
        check(prepare("int8", device="cpu"))
    model = gpt()
    assert compile_model(model, prepare("float32", device="cpu")).module is model  # without Numba, as it is


def test_float64_is_kept() -> None:
    model = gpt().double()
    assert compile_model(model, prepare("float32", device="cpu")).module is model


@pytest.mark.parametrize("precision", [*PRECISIONS, "auto"])
def test_a_model_without_blocks_stays_as_it_is(precision: Any, log: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 12), torch.nn.Tanh(), torch.nn.Linear(12, 5))
    fast = compile_model(model, prepare(precision))
    assert fast.module is model
    assert fast.compute.precision == ("bf16" if precision == "bf16" else "float32")
    assert ("found no blocks that can run in 8 bits: using float32" in log.text) == (precision == "int8")

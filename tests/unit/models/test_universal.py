"""The Universal Transformer, compared with repeated PyTorch layers, and its halting with the published loop."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyheads import record
from manyheads.core.positions import sinusoidal
from manyheads.generation import Sampling, beam_search, greedy, sample, score
from manyheads.models.presets import preset
from manyheads.models.recurrence import PonderState, ponder_cost
from manyheads.models.universal import Universal, UniversalConfig, UniversalSequence, UniversalSequenceConfig
from tests.support.porting import port_block, randomize

V, END, PAD = 13, 0, 12
TOKENS: dict[str, Any] = {"source_vocab": V, "target_vocab": V, "pad": PAD, "end": END, "start": PAD}
SMALL: dict[str, Any] = {"width": 16, "steps": 4, "heads": 2, "feed_forward": 24, "dropout": 0.0}
B, TS, TT = 3, 7, 6
LENGTHS = torch.tensor([7, 2, 4])
HALTING = ("fixed", "basic", "accumulated")


def small(**settings: Any) -> Universal:
    torch.manual_seed(0)
    model = Universal(UniversalConfig(**{**SMALL, **TOKENS, **settings}))
    if model.encoder.halt is not None and model.decoder.halt is not None:
        for halt in (model.encoder.halt, model.decoder.halt):  # decided, and differently at each position
            nn.init.normal_(halt.weight, std=0.3)
            nn.init.constant_(halt.bias, -0.7)
    return model.eval()


def sentences() -> tuple[Tensor, Tensor]:
    draw = torch.randint(1, PAD, (B, TS + TT), generator=torch.Generator().manual_seed(1))
    return draw[:, :TS], draw[:, TS:]


def test_parameter_counts() -> None:
    with torch.device("meta"):
        model = Universal(preset("universal/base", **TOKENS))
    blocks = [*model.encoder.block.parameters(), *model.decoder.block.parameters()]
    assert sum(p.numel() for p in blocks) == 29_392_896
    assert sum(p.numel() for p in model.parameters()) == 29_392_896 + V * 1024


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("training", [False, True])
def test_fixed_steps_are_a_tied_stack(norm: str, training: bool) -> None:
    """PyTorch's layers, the same one four times, with the paper's coordinates added before each."""
    torch.manual_seed(1)
    sizes: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": norm == "pre"}
    encoder = nn.TransformerEncoderLayer(16, 2, 24, **sizes)
    decoder = nn.TransformerDecoderLayer(16, 2, 24, **sizes)
    model = small(norm=norm, positions="interleaved").train(training)
    for theirs, ours in ((encoder, model.encoder.block), (decoder, model.decoder.block)):
        randomize(theirs)
        theirs.train(training)
        port_block(theirs, ours)
    source, target = sentences()
    outside = torch.arange(TS) >= LENGTHS[:, None]
    triangle = torch.ones(TT, TT).triu(1).bool()
    x, y = (model.source_embedding.weight[tokens] * 4 for tokens in (source, target))
    i = torch.arange(0, 16, 2).double()

    def wave(at: Tensor) -> Tensor:  # (T, 16), interleaved
        angle = at.double()[:, None] / 10000 ** (i / 16)
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).float()

    for step in range(1, 5):
        x = encoder(x + wave(torch.arange(TS)) + wave(torch.tensor([step])), src_key_padding_mask=outside)
    if model.encoder.norm is not None:
        x = nn.functional.layer_norm(x, (16,))
    for step in range(1, 5):
        y = y + wave(torch.arange(TT)) + wave(torch.tensor([step]))
        y = decoder(y, x, tgt_mask=triangle, memory_key_padding_mask=outside)
    if model.decoder.norm is not None:
        y = nn.functional.layer_norm(y, (16,))
    torch.testing.assert_close(model.forward_with_halting(source, LENGTHS, target)[0], y, atol=1e-5, rtol=1e-5)


def published(states: np.ndarray, p: np.ndarray, epsilon: float, how: str) -> tuple[np.ndarray, float, float]:
    """One position's output (D,), N and R by the published loop; states (steps, D) after each step, p (steps,)."""
    total, remainder, updates, y = 0.0, 0.0, 0, np.zeros(states.shape[1])
    for step, state in enumerate(states):
        running = total < 1 - epsilon and updates == step
        if not running:
            break
        updates += 1
        weight = p[step]
        if total + p[step] > 1 - epsilon or step == len(states) - 1:
            remainder = weight = 1 - total
            total = 1.0
        else:
            total += p[step]
        y = y + weight * state if how == "accumulated" else weight * state + (1 - weight) * y
    return y, updates, remainder


@pytest.mark.parametrize("how", ["basic", "accumulated"])
def test_halting_equals_the_published_loop(how: str) -> None:
    model = small(halting=how, steps=6).double()
    states: list[Tensor] = []
    chances: list[Tensor] = []
    assert model.encoder.halt is not None
    model.encoder.block.register_forward_hook(lambda _, __, out: states.append(out))
    model.encoder.halt.register_forward_hook(lambda _, __, out: chances.append(out.sigmoid()[..., 0]))
    source, _ = sentences()
    with torch.no_grad():
        y, ponder = model.encoder(model.source_embedding(source), mask=model_mask(None))
    assert ponder is not None
    assert len(states) == int(ponder.steps.max())
    for b in range(B):
        for t in range(TS):
            each, p = (torch.stack(found)[:, b, t].numpy() for found in (states, chances))
            padded = np.concatenate([each, np.zeros((6 - len(each), 16))])
            expected, n, r = published(padded, np.append(p, np.zeros(6 - len(p))), 0.01, how)
            np.testing.assert_allclose(y[b, t].numpy(), expected, atol=1e-12)
            assert (float(ponder.steps[b, t]), float(ponder.remainder[b, t])) == (n, pytest.approx(r))
    assert len(ponder.steps.unique()) >= 3


def model_mask(lengths: Tensor | None) -> Any:
    from manyheads.core.masks import Mask

    return Mask(key_lengths=lengths)


@pytest.mark.parametrize(
    ("how", "shares"), [("basic", [0.1323, 0.189, 0.27, 0.1]), ("accumulated", [0.3, 0.3, 0.3, 0.1])]
)
def test_published_weights_are_converted(how: str, shares: list[float]) -> None:
    model = small(halting=how, steps=9)
    assert model.encoder.halt is not None
    nn.init.zeros_(model.encoder.halt.weight)
    nn.init.constant_(model.encoder.halt.bias, float(np.log(0.3 / 0.7)))
    states: list[Tensor] = []
    model.encoder.block.register_forward_hook(lambda _, __, out: states.append(out))
    y, ponder = model.encoder(model.source_embedding(sentences()[0]), mask=model_mask(None))
    assert ponder is not None
    assert ponder.weights.flatten(0, 1)[0].tolist() == pytest.approx([0.3, 0.3, 0.3, 0.1])
    mixed = sum(share * state for share, state in zip(shares, states, strict=True))
    torch.testing.assert_close(y, mixed, atol=1e-5, rtol=1e-5)
    assert float(ponder.cost.detach()) == pytest.approx(4 + 0.1)


@pytest.mark.parametrize("how", ["basic", "accumulated"])
def test_halting_weights_sum_to_one_and_halted_positions_freeze(how: str) -> None:
    source, _ = sentences()
    few, many = small(halting=how, steps=5), small(halting=how, steps=11)
    many.load_state_dict(few.state_dict())
    found: list[tuple[Tensor, PonderState]] = []
    for model in (few, many):
        y, ponder = model.encoder(model.source_embedding(source), mask=model_mask(LENGTHS))
        real = torch.arange(TS) < LENGTHS[:, None]
        torch.testing.assert_close(ponder.weights.sum(-1)[real], torch.ones(int(real.sum())))
        assert torch.equal((ponder.weights > 0).sum(-1)[real], ponder.steps[real].long())
        found.append((y, ponder))
    halted = (found[0][1].steps < 5) & (torch.arange(TS) < LENGTHS[:, None])
    assert halted.any()
    assert (found[1][1].steps > 5).any()  # others went on, and could be looked at
    assert torch.equal(found[0][0][halted], found[1][0][halted])
    assert torch.equal(found[0][1].steps[halted], found[1][1].steps[halted])


def test_an_infinite_halting_bias_takes_one_step() -> None:
    once, fixed = small(halting="basic", steps=5), small(steps=1)
    for halt in (once.encoder.halt, once.decoder.halt):
        assert halt is not None
        nn.init.constant_(halt.bias, 100.0)
    fixed.load_state_dict({k: v for k, v in once.state_dict().items() if ".halt." not in k})
    source, target = sentences()
    hidden, thoughts = once.forward_with_halting(source, LENGTHS, target)
    torch.testing.assert_close(hidden, fixed.forward_with_halting(source, LENGTHS, target)[0])
    assert {name: float(ponder.mean_steps) for name, ponder in thoughts.items()} == {"encoder": 1.0, "decoder": 1.0}
    assert float(ponder_cost(once, thoughts)) == pytest.approx(0.01 * (2 + 2))


@pytest.mark.parametrize("halting", HALTING)
@pytest.mark.parametrize("transition", ["feed_forward", "separable"])
def test_batch_equals_single_and_is_causal(halting: str, transition: str) -> None:
    model = small(halting=halting, transition=transition)
    source, target = sentences()
    together = model(source, LENGTHS, target)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = model(source[row : row + 1, :length], None, target[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, atol=1e-5, rtol=1e-5)
    changed = target.clone()
    changed[:, 4] = changed[:, 4] % 11 + 1
    later = model(source, LENGTHS, changed)
    torch.testing.assert_close(later[:, :4], together[:, :4], atol=1e-6, rtol=1e-6)
    assert (later[:, 4:] - together[:, 4:]).abs().max() > 1e-3


def test_separable_convolution_equals_its_definition() -> None:
    """Compute the convolution position by position as sums over neighbors, with zeros outside the text."""
    for causal, name in ((False, "encoder"), (True, "decoder")):
        layer: Any = getattr(small(transition="separable"), name).block.feed_forward
        assert layer.causal == causal
        x = torch.randn(1, 5, 16)

        def along(x: Tensor, weight: Tensor, causal: bool = causal) -> Tensor:  # (T, D), (D, 1, K)
            size = weight.shape[-1]
            first = size - 1 if causal else size // 2
            rows = []
            for t in range(len(x)):
                near = [(t - first + k, k) for k in range(size) if 0 <= t - first + k < len(x)]
                rows.append(torch.stack([x[at] * weight[:, 0, k] for at, k in near]).sum(0))
            return torch.stack(rows)

        hidden = (along(x[0], layer.before.weight) @ layer.expand.weight.T + layer.expand.bias).relu()
        expected = along(hidden, layer.between.weight) @ layer.contract.weight.T + layer.contract.bias
        torch.testing.assert_close(layer(x)[0], expected, atol=1e-5, rtol=1e-5)


class Prefixes:
    """The same model without a cache: each step reads the source and the whole prefix again."""

    def __init__(self, model: Universal, source: Tensor) -> None:
        self.model, self.source, self.source_lengths = model, source, LENGTHS
        self.prefix = torch.zeros(len(source), 0, dtype=torch.long)
        self.lengths = torch.zeros(len(source), dtype=torch.long)

    def select(self, rows: Tensor) -> None:
        for name in ("source", "source_lengths", "prefix", "lengths"):
            setattr(self, name, getattr(self, name)[rows])

    @staticmethod
    def step(tokens: Tensor, cache: "Prefixes") -> Tensor:
        cache.prefix = torch.cat([cache.prefix, tokens], dim=1)
        cache.lengths = cache.lengths + tokens.shape[1]
        return cache.model(cache.source, cache.source_lengths, cache.prefix)[:, -tokens.shape[1] :]


@pytest.mark.parametrize("halting", HALTING)
@pytest.mark.parametrize("transition", ["feed_forward", "separable"])
def test_decoding_uses_a_cache(halting: str, transition: str) -> None:
    model = small(halting=halting, transition=transition, norm="pre").double()
    source, _ = sentences()
    asked: dict[str, Any] = {"start": PAD, "end": END, "limits": torch.tensor([9, 5, 8]), "suppress": (PAD,)}
    one = greedy(model.step, model.start(source, LENGTHS, 10), **asked)
    other = greedy(Prefixes.step, Prefixes(model, source), **asked)
    assert [h.tokens for h in one] == [h.tokens for h in other]
    many = beam_search(model.step, model.start(source, LENGTHS, 10), beam=3, nbest=3, **asked)
    others = beam_search(Prefixes.step, Prefixes(model, source), beam=3, nbest=3, **asked)
    for these, those in zip(many, others, strict=True):
        assert [h.tokens for h in these] == [h.tokens for h in those]
        assert [h.score for h in these] == pytest.approx([h.score for h in those], rel=1e-9)
    with torch.inference_mode():
        best = [each[0] for each in many]
        scored = score(model.step, model.start(source, LENGTHS, 10), [h.tokens for h in best], start=PAD, end=END,
                       suppress=(PAD,))  # fmt: skip
    assert [h.log_probability for h in scored] == pytest.approx([h.log_probability for h in best], rel=1e-6)


@pytest.mark.parametrize("transition", ["feed_forward", "separable"])
def test_a_decoder_continues_texts_of_unequal_length(transition: str) -> None:
    torch.manual_seed(0)
    settings = {**SMALL, "vocab": V, "transition": transition, "halting": "basic", "max_positions": 12}
    model = UniversalSequence(UniversalSequenceConfig(**settings)).double().eval()
    prompts = [[1, 2, 3, 4, 5, 6, 7], [8], [9, 10, 3]]

    def continued(rows: list[int]) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in rows]
        texts = [prompts[row] for row in rows]
        for given in sample(model.start, model.step, texts, Sampling(temperature=0), context=12,
                            limits=[9] * len(rows), seeds=[0] * len(rows)):  # fmt: skip
            for row, token in given:
                found[row].append(token)
        return found

    together = continued([0, 1, 2])  # the first outgrows the positions, and is read again from its latter half
    assert together == [continued([row])[0] for row in range(3)]
    text = [*prompts[2]]
    for token in together[2]:
        assert int(model(torch.tensor([text]))[0, -1].argmax()) == token
        text.append(token)


def test_an_encoder_is_bidirectional() -> None:
    torch.manual_seed(0)
    model = UniversalSequence(UniversalSequenceConfig(**SMALL, vocab=V, head="encoder")).eval()
    source, _ = sentences()
    together = model(source, LENGTHS)
    assert together.shape == (B, TS, V)
    torch.testing.assert_close(together[1:2, :2], model(source[1:2, :2]), atol=1e-5, rtol=1e-5)
    changed = source.clone()
    changed[0, -1] = changed[0, -1] % 11 + 1
    assert (model(changed, LENGTHS)[0, 0] - together[0, 0]).abs().max() > 1e-5


@pytest.mark.parametrize("transition", ["feed_forward", "separable"])
def test_every_parameter_is_trained(transition: str) -> None:
    model = small(halting="basic", timing="learned", norm="pre", transition=transition).train()
    source, target = sentences()
    hidden, thoughts = model.forward_with_halting(source, LENGTHS, target)
    (model.project(hidden).square().mean() + ponder_cost(model, thoughts)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        if not name.endswith("key.bias"):  # adds the same to every score
            assert parameter.grad.abs().max() > 0, name


def test_positions_may_start_anywhere() -> None:
    model = small(max_positions=20)
    source, target = sentences()
    offset = torch.tensor([0, 5, 13])
    moved = model.project(model.forward_with_halting(source, LENGTHS, target, None, offset)[0])
    plain = model(source, LENGTHS, target)
    torch.testing.assert_close(moved[0], plain[0])
    assert (moved[1:] - plain[1:]).abs().amax((1, 2)).min() > 1e-3
    shifted = sinusoidal(20, 16, "concatenated").float()[5 : 5 + TS]
    x = model.source_embedding(source[1:2])
    torch.testing.assert_close(model.encoder.positions(x, offset[1:2]), x + shifted)
    with pytest.raises(ValueError, match="position 21 is needed, but the model takes at most 20"):
        model.forward_with_halting(source, LENGTHS, target, None, offset + 1)


def test_a_recording_has_one_map_per_step() -> None:
    model = small(halting="basic", steps=6)
    source, target = sentences()
    with record(model, layers="encoder.*") as maps:
        _, thoughts = model.forward_with_halting(source, LENGTHS, target)
    calls = maps["encoder.block.attention"]
    real = torch.arange(TS) < LENGTHS[:, None]
    assert len(calls) == int(thoughts["encoder"].steps[real].max())
    assert calls[0].shape == (B, 2, TS, TS)


def test_impossible_settings() -> None:
    for settings, message in (
        ({"heads": 3}, r"heads is 3: expected an integer that divides width \(16\)"),
        ({"epsilon": 0.0}, "epsilon is 0.0: expected a number above 0 and below 1"),
        ({"steps": 0}, "steps is '?0'?: expected an integer from 1"),
        ({"halting": "never"}, "halting is 'never': expected one of fixed, basic, accumulated"),
        ({"transition": "separable", "activation": "gelu"}, "expected 'relu', which the separable transition uses"),
        ({"target_vocab": V + 1}, "model.tie=all needs one vocabulary"),
        ({"end": V}, rf"end is {V}: expected an integer from 0 to below \w+ \({V}\)"),
    ):
        with pytest.raises(ValueError, match=message):
            UniversalConfig(**{**SMALL, **TOKENS, **settings})
    with pytest.raises(ValueError, match="unknown preset 'universal/huge': did you mean universal/"):
        preset("universal/huge", **TOKENS)

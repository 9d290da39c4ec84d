"""Encoder-decoder: published counts, parity with torch.nn.Transformer, and documented equalities."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from manyheads.models.presets import PRESETS, preset
from manyheads.models.transformer import Transformer, TransformerConfig
from manyheads.training.loss import smoothed_cross_entropy
from tests.support.porting import port_stack, randomize

V, PAD, END = 23, 22, 0
SPECIAL = {"pad": PAD, "end": END, "start": PAD}
SMALL = {"width": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_heads": 2, "decoder_heads": 4,
         "encoder_feed_forward": 24, "decoder_feed_forward": 20, "dropout": 0.0}  # fmt: skip
B, TS, TT = 3, 7, 6
LENGTHS, TARGET_LENGTHS = torch.tensor([7, 2, 4]), torch.tensor([6, 3, 1])


def small(**settings: Any) -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerConfig(**{**SMALL, **SPECIAL, "source_vocab": V, "target_vocab": V, **settings}))


def sentences() -> tuple[Tensor, Tensor]:
    draw = torch.randint(1, PAD, (B, TS + TT), generator=torch.Generator().manual_seed(1))
    return draw[:, :TS], draw[:, TS:]


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_the_blogs_model_has_its_published_count() -> None:
    with torch.device("meta"):
        model = Transformer(preset("transformer/blog", source_vocab=19_214, target_vocab=10_837, pad=1, end=3, start=2))
    assert count(model) == 33_570_389


def test_three_way_tying_is_one_parameter() -> None:
    model = small(tie="all")
    assert model.source_embedding.weight is model.target_embedding.weight is model.output_weight
    assert [name for name, p in model.named_parameters() if p.shape == (V, 16)] == ["source_embedding.weight"]
    model = small(tie="target", source_vocab=30)
    assert model.target_embedding.weight is model.output_weight
    assert model.source_embedding.weight.shape == (30, 16)
    model = small(tie="none")
    tables = {id(t) for t in (model.source_embedding.weight, model.target_embedding.weight, model.output_weight)}
    assert len(tables) == 3


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("norm", "activation"), [("post", "relu"), ("pre", "gelu")])
def test_outputs_equal_torch_nn_transformer(norm: str, activation: str, training: bool) -> None:
    torch.manual_seed(1)
    theirs = nn.Transformer(16, 2, 2, 3, 24, 0.0, activation, batch_first=True, norm_first=norm == "pre")
    randomize(theirs)
    ours = small(
        norm=norm, activation=activation, final_norm=True, decoder_heads=2, decoder_feed_forward=24, tie="none",
        output_bias=True, positions="interleaved",
    )  # fmt: skip
    port_stack(theirs.encoder, ours.encoder)
    port_stack(theirs.decoder, ours.decoder)
    theirs.train(training)
    ours.train(training)
    source, target = sentences()
    t, i = torch.arange(TS).double()[:, None], torch.arange(0, 16, 2).double()
    table = torch.stack([(t / 10000 ** (i / 16)).sin(), (t / 10000 ** (i / 16)).cos()], dim=-1).flatten(1).float()
    embedded = ours.source_embedding.weight[source] * 4 + table
    wanted = ours.target_embedding.weight[target] * 4 + table[:TT]
    outside = torch.arange(TS) >= LENGTHS[:, None]
    states = theirs(
        embedded, wanted, tgt_mask=torch.ones(TT, TT).triu(1).bool(),
        src_key_padding_mask=outside, memory_key_padding_mask=outside,
    )  # fmt: skip
    assert ours.output is not None
    expected = ours.output(states) + ours.output_bias
    logits = ours(source, LENGTHS, target)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)

    weight = torch.randn_like(logits)
    names = {
        "encoder.blocks.0.feed_forward.expand.weight": "encoder.layers.0.linear1.weight",
        "decoder.blocks.2.cross.output.weight": "decoder.layers.2.multihead_attn.out_proj.weight",
    }
    pairs = [(ours.get_parameter(mine), theirs.get_parameter(yours)) for mine, yours in names.items()]
    got = torch.autograd.grad((logits * weight).sum(), [p for p, _ in pairs], retain_graph=True)
    reference = torch.autograd.grad((expected * weight).sum(), [p for _, p in pairs])
    for one, other in zip(got, reference, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


NORMALIZATIONS = [{"norm": "post"}, {"norm": "pre"}, *(
    {"norm": norm, "normalization": kind, "final_norm": norm == "pre"}
    for norm in ("post", "pre") for kind in ("batch", "none")
)]  # fmt: skip


def seen(model: Transformer) -> Transformer:
    """Let batch normalization collect statistics."""
    for _ in range(3):
        model.train().hidden(sentences()[0], LENGTHS, sentences()[1], TARGET_LENGTHS)
    return model.eval()


@pytest.mark.parametrize("choice", NORMALIZATIONS)
def test_batch_equals_single(choice: dict[str, Any]) -> None:
    """The blog's encode() and decode() forget the padding mask: right for one sentence, wrong for a batch."""
    model = seen(small(**choice))
    source, target = sentences()
    together = model(source, LENGTHS, target)
    exact = model.double()(source, LENGTHS, target).argmax(-1)
    for b, length in enumerate(LENGTHS.tolist()):
        one = slice(b, b + 1)
        alone = model(source[one, :length], None, target[one])
        assert torch.equal(alone.argmax(-1), exact[one])
        torch.testing.assert_close(together[one], alone.float(), atol=1e-5, rtol=1e-5)
    assert (model(source, None, target)[1] - model(source, LENGTHS, target)[1]).abs().max() > 1e-3


def test_attention_is_causal() -> None:
    model = small().eval()
    source, target = sentences()
    plain = model(source, LENGTHS, target)
    for t in range(1, TT):
        changed = target.clone()
        changed[:, t:] = (changed[:, t:] + 5) % PAD
        logits = model(source, LENGTHS, changed)
        assert torch.equal(logits[:, :t], plain[:, :t])
        assert not torch.allclose(logits[:, t], plain[:, t])


def test_padding_does_not_change_results() -> None:
    model = small().eval()
    source, target = sentences()
    outside, behind = torch.arange(TS) >= LENGTHS[:, None], torch.arange(TT) >= TARGET_LENGTHS[:, None]
    plain = model.project(model.hidden(source, LENGTHS, target, TARGET_LENGTHS))
    other = model.project(
        model.hidden(source.masked_fill(outside, PAD), LENGTHS, target.masked_fill(behind, PAD), TARGET_LENGTHS)
    )
    assert torch.equal(plain[~behind], other[~behind])
    torch.testing.assert_close(plain[~behind], model(source, LENGTHS, target)[~behind], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("choice", NORMALIZATIONS)
def test_a_text_depends_on_its_batch_only_with_batch_normalization_in_training(choice: dict[str, Any]) -> None:
    model = small(**choice).double().train()
    source, target = sentences()
    real = torch.arange(TT) < TARGET_LENGTHS[:, None]
    states = model.hidden(source, LENGTHS, target, TARGET_LENGTHS)
    statistics = copy.deepcopy(model.state_dict())
    # More padding changes nothing.
    more = model.hidden(
        nn.functional.pad(source, (0, 3), value=PAD),
        LENGTHS,
        nn.functional.pad(target, (0, 4), value=7),
        TARGET_LENGTHS,
    )
    torch.testing.assert_close(more[:, :TT][real], states[real], rtol=0, atol=1e-12)
    assert model.needs_lengths == (choice.get("normalization") == "batch")
    assert statistics.keys() == model.state_dict().keys()
    # Other texts change the states of the first text.
    source[1:], target[1:] = source[1:] % 5 + 1, target[1:] % 5 + 1
    other = model.hidden(source, LENGTHS, target, TARGET_LENGTHS)
    assert torch.allclose(other[0], states[0], rtol=0, atol=1e-12) != model.needs_lengths
    torch.testing.assert_close(model.eval().hidden(source, LENGTHS, target)[0], model.hidden(
        source[:1], LENGTHS[:1], target[:1])[0], rtol=0, atol=1e-12)  # fmt: skip


def test_without_normalization_a_block_is_a_sum() -> None:
    model = small(normalization="none", final_norm=True)
    assert not any("norm" in name for name in model.state_dict())
    block: Any = model.encoder.blocks[0]
    x = torch.randn(2, 5, 16)
    attended = x + block.attention(x, x)
    torch.testing.assert_close(block(x), attended + block.feed_forward(attended))


def uncached(model: Transformer, prefixes: list[list[int]], rows: list[int]) -> Tensor:
    """The logits after each prefix, without a cache and without a batch: (rows, V)."""
    source, _ = sentences()
    last = []
    for prefix, row in zip(prefixes, rows, strict=True):
        logits = model(source[row : row + 1, : LENGTHS[row]], None, torch.tensor([prefix]))
        last.append(logits[0, -1])
    return torch.stack(last)


@pytest.mark.parametrize("choice", [*NORMALIZATIONS, {"key_width": 2}])
def test_cached_equals_uncached(choice: dict[str, Any]) -> None:
    """Step by step, after a selection of rows, in chunks, and with rows of unequal lengths."""
    model = seen(small(**choice).double())
    source, target = sentences()
    rows = [0, 1, 2]
    prefixes: list[list[int]] = [[] for _ in rows]

    def step(tokens: Tensor) -> Tensor:
        """The logits behind the last token, and those behind every token agree with the uncached ones."""
        logits = model.step(tokens, cache)
        for t in range(tokens.shape[1]):
            for prefix, token in zip(prefixes, tokens[:, t].tolist(), strict=True):
                prefix.append(token)
            expected = uncached(model, prefixes, rows)
            torch.testing.assert_close(logits[:, t], expected, atol=1e-10, rtol=1e-10)
            assert torch.equal(logits[:, t].argmax(-1), expected.argmax(-1))
        return logits[:, -1]

    with torch.inference_mode():
        cache = model.start(source, LENGTHS, capacity=20)
        for t in range(3):
            step(target[:, t : t + 1])
        step(target[:, 3:5])
        chosen = [2, 0, 0, 2]
        cache.select(torch.tensor(chosen))
        rows, prefixes = [rows[i] for i in chosen], [list(prefixes[i]) for i in chosen]
        step(torch.tensor([[3], [4], [5], [6]]))
        # take back a token of two rows, as a decoder with drafts would: the rows' lengths now differ
        cache.advance(torch.tensor([-1, 0, 0, -1]))
        prefixes[0].pop()
        prefixes[3].pop()
        step(torch.tensor([[7], [8], [9], [10]]))
        step(torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]]))
        cache.select(torch.tensor([3, 1]))
        rows, prefixes = [rows[3], rows[1]], [prefixes[3], prefixes[1]]
        step(torch.tensor([[11], [12]]))


def test_every_parameter_is_trained() -> None:
    model = small(tie="none", output_bias=True, final_norm=True, positions="learned", max_positions=TS)
    source, target = sentences()
    source = torch.arange(B * TS).view(B, TS) % PAD  # every token but padding
    target[0, 0] = PAD
    wanted = target.roll(-1, 1)
    logits = model(source, LENGTHS.new_full((B,), TS), target)
    nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten()).backward()
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, name
        if name.endswith(".key.bias"):  # moves all scores of a query alike
            assert gradient.abs().max() < 1e-6, name
        elif name.endswith("embedding.weight"):
            assert torch.equal(gradient[PAD], torch.zeros(16)), name
            assert gradient[:PAD].abs().max() > 1e-6, name
        else:
            assert gradient.abs().max() > 1e-6, name


def test_the_padding_row_stays_zero_while_training() -> None:
    """With tied embeddings `padding_idx` alone does not keep it: the loss must not touch it either."""
    model = small(tie="all", dropout=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.9, 0.98), eps=1e-9)
    source, target = sentences()
    entry = torch.cat([torch.full((B, 1), PAD), target[:, :-1]], dim=1)
    target[1, 3:] = PAD
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        hidden = model.hidden(source, LENGTHS, entry).flatten(0, 1)
        loss = smoothed_cross_entropy(
            hidden, model.output_weight, model.output_bias, target.flatten(), smoothing=0.1, pad=PAD
        )
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    assert torch.equal(model.output_weight[PAD], torch.zeros(16))


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("transformer/")])
def test_presets_are_complete(name: str) -> None:
    config = preset(name, source_vocab=V, target_vocab=V, **SPECIAL)
    assert config.encoder_layers == config.decoder_layers
    assert config.norm == "post"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 15}, r"encoder_heads is 2: expected an integer that divides width \(15\)"),
        ({"decoder_heads": 3}, r"decoder_heads is 3: expected an integer that divides width \(16\)"),
        ({"source_vocab": 30}, "needs one vocabulary, found 30 source and 23 target"),
        ({"tie": "some"}, "tie is 'some': expected one of all"),
        ({"activation": "swish"}, "'swish'.*relu, silu, gelu, gelu_tanh"),
        ({"norm": "middle"}, "norm is 'middle': expected one of post, pre"),
        ({"normalization": "group"}, "normalization is 'group': expected one of layer, batch, none"),
        ({"positions": "fancy"}, "'fancy'.*concatenated"),
    ],
)
def test_bad_settings_are_reported(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**settings)


def test_unknown_names_are_reported() -> None:
    with pytest.raises(ValueError, match="'transformer/huge': did you mean transformer/"):
        preset("transformer/huge")
    with pytest.raises(ValueError, match="unknown settings depth: expected some of .*encoder_layers"):
        preset("transformer/tiny", depth=3, source_vocab=V, target_vocab=V, **SPECIAL)


def test_an_overlong_sentence_is_refused() -> None:
    model = small(max_positions=5)
    source, target = sentences()
    with pytest.raises(ValueError, match="7 tokens, but the model takes at most 5"):
        model(source, LENGTHS, target[:, :4])

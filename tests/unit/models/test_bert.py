"""BERT: published counts, documented equalities, and the weights that a change of head preserves."""

from typing import Any

import pytest
import torch
from torch import Tensor

from manyheads.analysis.costs import example
from manyheads.core.editing import edit
from manyheads.models.adapt import adapt
from manyheads.models.bert import Bert, BertConfig
from manyheads.models.presets import PRESETS, preset

SMALL: dict[str, Any] = {"vocab": 31, "width": 12, "layers": 3, "heads": 3, "feed_forward": 20, "max_positions": 16}
HEADS: dict[str, tuple[str, ...]] = {
    "none": (), "pooler": (), "masked_lm": (), "pretraining": (), "next_sentence": (), "sequence": ("a", "b", "c"),
    "token": ("O", "B", "I", "X"), "question": (), "choice": (),
}  # fmt: skip
LENGTHS = torch.tensor([9, 4, 6])


def small(head: str = "pooler", **settings: Any) -> Bert:
    torch.manual_seed(0)
    model = Bert(BertConfig(**{**SMALL, "head": head, "labels": HEADS[head], "dropout": 0.0, "attention_dropout": 0.0,
                               **settings}))  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


def texts(head: str = "pooler") -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (3, 9) padded with 0, lengths, segments; candidates for a choice (3, 1, 9)."""
    tokens = torch.randint(1, 31, (3, 9), generator=torch.Generator().manual_seed(1))
    tokens[torch.arange(9) >= LENGTHS[:, None]] = 0
    segments = (torch.arange(9) > 2).long().expand(3, 9)
    if head == "choice":
        return tokens[:, None], LENGTHS[:, None], segments[:, None]
    return tokens, LENGTHS, segments


def first(output: Any) -> Tensor:
    return output[0] if isinstance(output, tuple) else output


def everything(output: Any) -> Tensor:
    return torch.cat([part.flatten() for part in (output if isinstance(output, tuple) else (output,))])


@pytest.mark.parametrize(
    ("name", "settings", "count"),
    [
        ("base-uncased", {}, 109_482_240),
        ("base-uncased", {"head": "none"}, 108_891_648),
        ("base-uncased", {"head": "masked_lm"}, 109_514_298),
        ("base-uncased", {"head": "pretraining"}, 110_106_428),
        ("base-uncased", {"head": "sequence", "labels": ("0", "1")}, 109_483_778),
        ("base-uncased", {"head": "next_sentence"}, 109_483_778),
        ("base-uncased", {"head": "token", "labels": ("0", "1")}, 108_893_186),
        ("base-uncased", {"head": "question"}, 108_893_186),
        ("base-uncased", {"head": "token", "labels": tuple("012345678")}, 108_898_569),
        ("base-uncased", {"head": "choice"}, 109_483_009),
        ("base-cased", {}, 108_310_272),
        ("large-uncased", {}, 335_141_888),
        ("large-uncased", {"head": "masked_lm"}, 335_174_458),
        ("large-uncased", {"head": "pretraining"}, 336_226_108),
        ("megatron-345m", {}, 333_640_704),
        ("tiny", {}, 4_385_920),
        ("mini", {}, 11_170_560),
        ("small", {}, 28_763_648),
        ("medium", {}, 41_373_184),
    ],
)
def test_published_counts(name: str, settings: dict[str, Any], count: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in Bert(preset(name, "bert", **settings)).parameters()) == count


def test_every_preset_has_a_count_and_unknown_ones_are_suggested() -> None:
    names = {name.removeprefix("bert/") for name in PRESETS if name.startswith("bert/")}
    assert names == {"tiny", "mini", "small", "medium", "base-uncased", "base-cased", "large-uncased", "megatron-345m"}
    with pytest.raises(ValueError, match="unknown preset 'bert/huge': did you mean "):
        preset("bert/huge")
    with pytest.raises(ValueError, match="unknown settings depth"):
        preset("bert/tiny", depth=3)


@pytest.mark.parametrize("head", HEADS)
def test_shapes_are_right_and_every_parameter_trains(head: str) -> None:
    model, asked = small(head).double(), texts(head)
    output = model(*asked)
    shapes = {
        "masked_lm": (3, 9, 31), "pretraining": (3, 9, 31), "next_sentence": (3, 2), "sequence": (3, 3),
        "token": (3, 9, 4), "question": (3, 9, 2), "choice": (3, 1),
    }  # fmt: skip
    assert first(output).shape == shapes.get(head, (3, 9, 12))
    if head == "pretraining":
        assert output[1].shape == (3, 2)
    if head == "pooler":
        output = model.pool(output)
        assert output.shape == (3, 12)
    everything(output).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        largest = parameter.grad.abs().max()
        # a key's bias moves all scores of a query alike
        assert largest < 1e-9 if name.endswith("key.bias") else largest > 1e-6, name


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batch_results_equal_single_results_despite_padding(head: str, dtype: torch.dtype) -> None:
    model = small(head).to(dtype)
    tokens, lengths, segments = texts(head)
    together = model(tokens, lengths, segments)
    other = tokens.clone()
    other[other == 0] = 7
    again = model(other, lengths, segments)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = model(tokens[row : row + 1, ..., :length], None, segments[row : row + 1, ..., :length])
        real = slice(None) if first(alone).dim() < 3 else slice(length)
        for batched in (together, again):
            assert torch.allclose(first(batched)[row][real], first(alone)[0][real], atol=1e-5, rtol=1e-5)
            if dtype == torch.float64:
                assert torch.equal(first(batched)[row][real].argmax(-1), first(alone)[0][real].argmax(-1))


def test_states_of_all_layers_end_with_the_encoder_output() -> None:
    model, asked = small("pooler"), texts()
    states = model.all_states(*asked)
    assert len(states) == 1 + 3
    torch.testing.assert_close(states[-1], model.encode(*asked))
    torch.testing.assert_close(states[0], model.embed(asked[0], asked[2]))
    assert not torch.allclose(states[1], states[2], atol=1e-2)
    with edit(model) as change:  # also of what goes into the first layer
        change.residual("encoder", torch.zeros_like(states[0]))
        torch.testing.assert_close(model.all_states(*asked)[-1], model.encode(*asked))
        assert not torch.allclose(model.encode(*asked), states[-1], atol=1e-2)


def test_segments_default_to_the_first() -> None:
    model, (tokens, lengths, _) = small("sequence"), texts()
    torch.testing.assert_close(model(tokens, lengths), model(tokens, lengths, torch.zeros_like(tokens)))
    assert not torch.allclose(model(tokens, lengths), model(tokens, lengths, torch.ones_like(tokens)), atol=1e-3)


def test_multiple_choice_scores_candidates_independently() -> None:
    model = small("choice")
    tokens = torch.randint(1, 31, (2, 4, 7), generator=torch.Generator().manual_seed(2))
    scores = model(tokens)
    assert scores.shape == (2, 4)
    for candidate in range(4):
        torch.testing.assert_close(model(tokens[:, candidate : candidate + 1])[:, 0], scores[:, candidate])


def test_weights_follow_a_truncated_normal() -> None:
    torch.manual_seed(0)
    model = Bert(BertConfig(**{**SMALL, "width": 48, "head": "pretraining"}))
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            assert parameter.abs().max() <= 0.04, name
        elif name.endswith("bias"):
            assert not parameter.any(), name
    # a normal that is cut at two deviations keeps 0.8796 of its deviation
    deviation = float(model.get_parameter("encoder.blocks.0.feed_forward.expand.weight").detach().std())
    assert deviation == pytest.approx(0.02 * 0.8796, rel=0.05)
    assert not model.embedding.weight[0].any()


def test_dropout_acts_where_configured() -> None:
    asked = texts()
    for name in ("dropout", "attention_dropout", "head_dropout"):
        model = small("sequence", **{name: 0.5})
        assert torch.equal(model(*asked), model(*asked))
        model.train()
        assert not torch.equal(model(*asked), model(*asked)), name


def test_another_head_keeps_the_encoder_and_names_new_weights() -> None:
    words = small("masked_lm")
    model, new = adapt(words, head="sequence", labels=("good", "bad"))
    assert new == ["pooler.weight", "pooler.bias", "classifier.weight", "classifier.bias"]
    torch.testing.assert_close(model.encode(*texts()), words.encode(*texts()))
    tagger, new = adapt(model, head="token", labels=("good", "bad"))
    assert new == ["classifier.weight", "classifier.bias"]
    assert tagger.get_parameter("classifier.weight").shape == model.get_parameter("classifier.weight").shape
    assert not torch.equal(tagger.get_parameter("classifier.weight"), model.get_parameter("classifier.weight"))
    same, new = adapt(model, head="sequence", labels=("good", "bad"), dropout=0.3)
    assert new == []
    assert same.config.dropout == 0.3
    torch.testing.assert_close(same(*texts()), model(*texts()))
    back, new = adapt(small("pretraining"), head="masked_lm", labels=())
    assert new == []
    torch.testing.assert_close(back(*texts()), small("pretraining")(*texts())[0])
    with pytest.raises(ValueError, match="feed_forward would change the shapes of encoder"):
        adapt(model, head="none", labels=(), feed_forward=24)


@pytest.mark.parametrize("head", ["pooler", "masked_lm", "pretraining"])
def test_tokens_are_added_to_the_vocabulary(head: str) -> None:
    words = small(head)
    grown, new = adapt(words, vocab=34)
    assert new == []
    before, after = first(words(*texts())), first(grown(*texts()))
    torch.testing.assert_close(after[..., :31] if head != "pooler" else after, before)
    assert torch.isfinite(first(grown(torch.tensor([[1, 33]]), None, None))).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"head": "tail"}, "head is 'tail': expected one of none, pooler"),
        ({"head": "token"}, "the head 'token' needs labels"),
        ({"head": "sequence", "labels": ("score",)}, "has only one label, 'score': expected at least two"),
        ({"head": "sequence", "labels": ("a", "b"), "target": "regression"}, "fits the number of labels, 2"),
        ({"head": "sequence", "labels": ("a",), "target": "rank"}, "target is 'rank': expected one of classes, regr"),
        ({"head": "token", "labels": ("a", "a")}, "labels is .*: expected a list of distinct names"),
        ({"width": 13}, r"heads is 3: expected an integer that divides width \(13\)"),
        ({"pad": 31}, r"pad is 31: expected an integer from 0 to below vocab \(31\)"),
        ({"activation": "mish"}, "unknown activation 'mish'"),
    ],
)
def test_impossible_configurations_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Bert(BertConfig(**{**SMALL, **settings}))


def test_an_overlong_text_is_reported() -> None:
    with pytest.raises(ValueError, match="the input has 17 tokens, but the model takes at most 16"):
        small()(torch.ones(1, 17, dtype=torch.int64))


@pytest.mark.parametrize("head", HEADS)
def test_the_example_fits_the_model(head: str) -> None:
    model = small(head)
    assert first(model(*example(model, 5))).isfinite().all()

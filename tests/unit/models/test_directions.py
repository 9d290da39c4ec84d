"""Three reading directions: the visible tokens of each position; LSTMs compared with torch."""

from dataclasses import fields

import pytest
import torch
from torch import Tensor, nn

from manyheads.models.directions import DIRECTIONS, Direction, DirectionalConfig, DirectionalEncoder

B, T = 3, 7
LENGTHS = torch.tensor([7, 3, 5])


def reader(reading: Direction, dtype: torch.dtype = torch.float64) -> DirectionalEncoder:
    torch.manual_seed(0)
    model = DirectionalEncoder(DirectionalConfig(17, reading, width=12, heads=2, feed_forward=20, max_positions=9)).to(
        dtype
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.eval()


def tokens() -> Tensor:
    return torch.randint(1, 17, (B, T), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("reading", DIRECTIONS)
def test_a_token_sees_what_its_reading_allows(reading: Direction) -> None:
    model, text = reader(reading), tokens()
    before = model.directions(text)
    for changed in range(T):
        other = text.clone()
        other[:, changed] = (other[:, changed] + 3) % 16 + 1
        for direction, (mine, theirs) in enumerate(zip(before, model.directions(other), strict=True)):
            known = (mine != theirs).any(-1).all(0).tolist()  # positions whose output changes
            right = [at >= changed for at in range(T)]
            left = [at <= changed for at in range(T)]
            expected = {"bidirectional": [True] * T, "left_to_right": right, "two_lstms": (right, left)[direction]}
            assert known == expected[reading]
            assert (mine != theirs).any(-1).any(0).tolist() == expected[reading]


@pytest.mark.parametrize("reading", DIRECTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batch_results_equal_single_results_despite_padding(reading: Direction, dtype: torch.dtype) -> None:
    model, text = reader(reading, dtype), tokens()
    together = model(text, LENGTHS)
    assert together.shape == (B, T, 12)
    for row, length in enumerate(LENGTHS.tolist()):
        alone = model(text[row : row + 1, :length])
        torch.testing.assert_close(together[row, :length], alone[0], atol=1e-5, rtol=1e-5)


def test_two_single_layer_lstms_equal_torchs_bidirectional() -> None:
    torch.manual_seed(0)
    model = DirectionalEncoder(DirectionalConfig(17, "two_lstms", width=12, layers=1, heads=2)).double()
    theirs = nn.LSTM(12, 9, 1, batch_first=True, bidirectional=True).double()
    assert model.lstms is not None
    with torch.no_grad():
        for lstm, suffix in zip(model.lstms, ("", "_reverse"), strict=True):
            for name, parameter in lstm.named_parameters():
                theirs.get_parameter(name + suffix).copy_(parameter)
    packed = nn.utils.rnn.pack_padded_sequence(
        model.embedding(tokens()), LENGTHS, batch_first=True, enforce_sorted=False
    )
    both, _ = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    halves = zip(model.directions(tokens(), LENGTHS), both.chunk(2, -1), model.projections, strict=True)
    real = torch.arange(T) < LENGTHS[:, None]
    for mine, their, project in halves:
        torch.testing.assert_close(mine[real], project(their)[real])


@pytest.mark.parametrize("reading", DIRECTIONS)
def test_every_parameter_is_trained(reading: Direction) -> None:
    model = reader(reading)
    parts = [model.transform_states(part, i) for i, part in enumerate(model.directions(tokens()))]
    logits = sum(part @ model.embedding.weight.T + model.output_bias for part in parts)
    assert isinstance(logits, Tensor)
    logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > (0 if name.endswith("key.bias") else 1e-9), name


def test_initial_weights_have_similar_scales() -> None:
    sizes = {
        reading: sum(p.numel() for p in DirectionalEncoder(DirectionalConfig(1000, reading)).parameters())
        for reading in DIRECTIONS
    }
    assert sizes["bidirectional"] == sizes["left_to_right"]
    assert 0.85 < sizes["two_lstms"] / sizes["bidirectional"] < 1.15


def test_impossible_configurations_are_refused() -> None:
    with pytest.raises(ValueError, match="reading is 'sideways': expected one of bidirectional"):
        DirectionalConfig(10, "sideways")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="width is 9: expected an even number"):
        DirectionalConfig(10, width=9, heads=3)


def test_directories_of_older_versions_keep_their_names() -> None:
    names = ["vocab", "reading", "pad", "width", "layers", "heads", "feed_forward", "max_positions"]
    assert [field.name for field in fields(DirectionalConfig)] == names
    assert DIRECTIONS == ("bidirectional", "left_to_right", "two_lstms")

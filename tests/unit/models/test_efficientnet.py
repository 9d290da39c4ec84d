"""EfficientNet: published counts and scaling. Parity is tested in tests/contracts/interop/test_efficientnet.py."""

import pytest
import torch

from manyheads.models.efficientnet import EfficientNet, EfficientNetConfig
from manyheads.models.presets import preset
from tests.unit.models.test_resnet import count


@pytest.mark.parametrize(
    ("number", "expected"),
    list(enumerate([5_288_548, 7_794_184, 9_109_994, 12_233_232, 19_341_616, 30_389_784, 43_040_704, 66_347_960])),
)
def test_preset_counts_match_publications(number: int, expected: int) -> None:
    with torch.device("meta"):
        assert count(EfficientNet(preset(f"efficientnet/b{number}"))) == expected


def test_channels_are_multiples_of_eight_and_at_least_nine_tenths() -> None:
    assert [EfficientNetConfig(width=2.0).channels_of(base) for base in (16, 112, 320)] == [32, 224, 640]
    assert [EfficientNetConfig(width=1.1).channels_of(base) for base in (16, 24, 40)] == [16, 24, 48]
    assert EfficientNetConfig(width=0.72).channels_of(16) == 16  # 8 would be less than 90% of 11.52
    assert EfficientNetConfig(width=0.1).channels_of(16) == 8
    assert EfficientNetConfig(depth=3.1).depths == [4, 7, 7, 10, 10, 13, 4]


def test_training_drops_blocks_and_features_only() -> None:
    torch.manual_seed(0)
    model = EfficientNet(EfficientNetConfig(("a", "b"), width=0.25, depth=0.5, stochastic_depth=0.9, dropout=0.5))
    images = torch.randn(2, 3, 32, 32)
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(images), model(images))
        model.train()
        assert not torch.equal(model.features(images), model.features(images))

"""BiT: published counts, weight standardization and invalid sizes. Parity: tests/contracts/interop/test_bit.py."""

import pytest
import torch

from manyheads.models.bit import Bit, BitConfig, StandardizedConvolution
from manyheads.models.presets import preset
from tests.unit.models.test_resnet import count


@pytest.mark.parametrize(("name", "expected"), [
    ("50x1", 25_549_352), ("50x3", 217_319_080), ("101x1", 44_541_480), ("101x3", 387_934_888),
    ("152x2", 236_335_208), ("152x4", 936_533_224),
])  # fmt: skip
def test_preset_counts_match_publications(name: str, expected: int) -> None:
    with torch.device("meta"):
        assert count(Bit(preset(f"bit/{name}"))) == expected


def test_scale_and_shift_of_a_filter_have_no_effect() -> None:
    torch.manual_seed(0)
    layer, x = StandardizedConvolution(16, 4, 3, bias=False), torch.randn(2, 16, 5, 5)
    before = layer(x)
    with torch.no_grad():
        layer.weight.mul_(7).add_(3)
    torch.testing.assert_close(layer(x), before, atol=1e-4, rtol=1e-4)


def test_images_of_a_batch_are_independent() -> None:
    torch.manual_seed(0)
    model = Bit(BitConfig(("a", "b"), depths=(1, 1), widths=(32, 32), stem_width=8, groups=4)).train()
    images = torch.randn(3, 3, 40, 40)
    torch.testing.assert_close(model(images)[1:2], model(images[1:2]), atol=1e-5, rtol=1e-4)


def test_sizes_without_a_valid_network_are_reported() -> None:
    with pytest.raises(ValueError, match="expected multiples of groups, which is 32, and of 4 times groups"):
        BitConfig(widths=(64, 512, 1024, 2048))
    with pytest.raises(ValueError, match="labels is 3: expected a list"):
        BitConfig(target="regression", labels=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected one of each per stage"):
        BitConfig(depths=(1, 1))

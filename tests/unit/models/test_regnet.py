"""RegNet: published counts and invalid sizes. Parity is tested in tests/contracts/interop/test_regnet.py."""

import pytest
import torch

from manyheads.models.presets import preset
from manyheads.models.regnet import RegNet, RegNetConfig
from tests.unit.models.test_resnet import count


@pytest.mark.parametrize(("name", "expected"), [("y-200mf", 3_162_996), ("y-16gf", 83_590_140)])
def test_preset_counts_match_publications(name: str, expected: int) -> None:
    with torch.device("meta"):
        assert count(RegNet(preset(f"regnet/{name}"))) == expected


def test_sizes_without_a_valid_network_are_reported() -> None:
    with pytest.raises(ValueError, match="widths is \\(24, 37\\): expected .* that width // 8 groups divide"):
        RegNetConfig(depths=(1, 1), widths=(24, 37), group_width=8)
    with pytest.raises(ValueError, match="expected one of each per stage"):
        RegNetConfig(depths=(1, 1))
    assert RegNetConfig(depths=(1,), widths=(6,), group_width=8).groups_of(6) == 1

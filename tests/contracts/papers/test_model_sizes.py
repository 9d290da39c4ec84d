"""Figure of model sizes over time, compared with published sizes."""

from pathlib import Path

from papers.model_sizes.sizes import draw, sizes


def test_model_sizes_match_publications_in_order(tmp_path: Path) -> None:
    found = sizes()
    assert [size.month for size in found] == sorted(size.month for size in found)
    millions = {size.preset: round(size.parameters / 1e6) for size in found}
    published = {"transformer/big": 213, "gpt/117m": 117, "bert/large-uncased": 340, "gpt2/1558m": 1558,
                 "gpt3/175b": 175_000, "vit/h14": 632, "deit/b16": 87}  # fmt: skip
    assert set(millions) == set(published)
    for preset, count in millions.items():
        assert abs(count / published[preset] - 1) < 0.02, preset
    draw(found, tmp_path / "sizes.png")
    assert (tmp_path / "sizes.png").read_bytes().startswith(b"\x89PNG")

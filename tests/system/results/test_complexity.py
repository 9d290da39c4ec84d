"""The complexity page and its figures."""

from pathlib import Path
from typing import Any

import pytest

from lab import complexity_page as page


def growth(device: str = "cpu") -> dict[str, Any]:
    def curve(part: str, name: str, against: str, power: float) -> dict[str, Any]:
        at = [64, 4096]
        return {
            "part": part, "name": name, "against": against, "at": at, "seconds": [n**power / 1e6 for n in at],
            "spread": [[0.0, 1.0]] * 2, "bytes": [1e6, 64e6], "seconds_exponent": power, "bytes_exponent": 1.0,
        }  # fmt: skip

    layers = [curve(part, kind, "length", 2.0 if kind == "attention" else 1.0)
              for kind in page.TABLE_1 for part in (page.FORWARD, page.BACKWARD)]  # fmt: skip
    decoders = [curve("decoder", "the next token", against, 0.5) for against in
                ("length", "batch", "vocabulary", "beam")]  # fmt: skip
    hardware = {"cpu": "Some CPU", "threads": 2, **({"gpu": "Some GPU"} if device == "cuda" else {})}
    return {"bench": ["growth"], "device": device, "curves": layers + decoders, "hardware": hardware, "commit": "c"}


INFLUENCE = {
    "recipe": page.INFLUENCE, "overrides": {},
    "by_distance": {"influence, before training": {"rnn": [1.0, 0.5], "attention": [0.25, 0.25]},
                    "share of marked words recalled": {"rnn": [1.0, 0.5], "attention": [1.0, 1.0]}},
}  # fmt: skip


def test_the_page_shows_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"runs": [INFLUENCE], "bench": [growth(), growth("cuda"), {"bench": ["startup"]}]}
    monkeypatch.setattr(page, "records", lambda kind="runs": kept[kind])
    text = page.page()
    assert "| attention | n² d | 1 | 1 | n^2.00 | n^2.00 | n^1.00 | n^1.00 | n^2.00 |" in text
    assert "time, 2 threads, Some CPU" in text
    assert "### Some GPU\n\n![Time and memory, Some GPU](../images/growth-cuda.png)" in text
    assert "| decoder: the next token | beam | 64 | 4,096 | 8e-06 to 6.4e-05 | 0.50 | 1.0 to 64.0 | 1.00 |" in text
    assert "![Influence over distance](../images/influence.png)" in text
    assert "`gpt3/175b` | text | 174,604,259,328 |" in text


def test_pictures_are_drawn(tmp_path: Path) -> None:
    assert page.draw_growth(growth(), tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")

"""Table 2 of Vaswani et al. 2017: the kept numbers are the printed ones, and the costs are computed again."""

import json

import pytest

from papers.command import run
from papers.transformer import wmt14
from papers.transformer.__main__ import main
from tests.contracts.analysis.test_costs import products


@pytest.mark.parametrize(
    ("name", "computed", "published"), [("transformer/base", 3.283e18, 3.3e18), ("transformer/big", 2.298e19, 2.3e19)]
)
def test_training_costs_equal_the_published_table(name: str, computed: float, published: float) -> None:
    cost = wmt14.training_cost(name)
    assert cost is not None
    assert cost["flops"] == pytest.approx(computed, rel=1e-3)
    assert cost["published"] == published
    assert cost["agrees"]
    assert wmt14.training_cost("transformer/tiny") is None
    assert 0 < cost["counted"] < cost["flops"]  # no machine computes products all the time


# Vaswani et al. 2017, table 2, as printed: BLEU and FLOPs, en-de and en-fr; the cost of a Transformer is one for both
SLIDE = """
ByteNet                     23.75 -      -       -
Deep-Att + PosUnk           -     39.2   -       1.0e20
GNMT + RL                   24.6  39.92  2.3e19  1.4e20
ConvS2S                     25.16 40.46  9.6e18  1.5e20
MoE                         26.03 40.56  2.0e19  1.2e20
Deep-Att + PosUnk, ensemble -     40.4   -       8.0e20
GNMT + RL, ensemble         26.30 41.16  1.8e20  1.1e21
ConvS2S, ensemble           26.36 41.29  7.7e19  1.2e21
Transformer (base)          27.3  38.1   3.3e18  3.3e18
Transformer (big)           28.4  41.8   2.3e19  2.3e19
"""


def test_the_table_equals_the_printed_one() -> None:
    table = wmt14.table()
    assert "table 2" in table["source"]
    printed = [line.rsplit(maxsplit=4) for line in SLIDE.strip().splitlines()]
    assert [row["model"] for row in table["rows"]] == [name.strip() for name, *_ in printed]
    for row, (_, *cells) in zip(table["rows"], printed, strict=True):
        kept = [row[column].get(pair) for column in ("bleu", "flops") for pair in ("en-de", "en-fr")]
        assert kept == [None if cell == "-" else float(cell) for cell in cells]


def test_counted_products_equal_the_formula() -> None:
    """Of the base model, per target token at 32 tokens a side: 2 FLOPs for each weight of a layer, and for scores."""
    layers = 6 * (products(512, 512, 2048, 32, None) + products(512, 512, 2048, 32, 32)) / 32
    assert wmt14.counted("transformer/base", 10) == pytest.approx(10 * 3 * (layers + 2 * 512 * 37_000))


def test_the_command_prints_the_whole_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(main, []) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line[:27].strip(): line[27:].split() for line in lines[1:11]}
    assert rows["GNMT + RL, ensemble"] == ["26.3", "41.16", "1.8e+20", "1.1e+21"]
    assert rows["Transformer (big)"][:5] == ["28.4", "41.8", "2.3e+19", "2.3e+19", "2.3e+19"]
    assert run(main, ["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"][-1]["computed"]["agrees"]

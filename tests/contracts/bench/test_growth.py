"""Growth curves: byte counts of known allocations, exponents of synthetic powers, and every curve on small sizes."""

import pytest
import torch

from benchmarks import growth as bench
from benchmarks.__main__ import main
from benchmarks.memory import Alive
from manyheads.core import attention

SMALL = {"LENGTHS": (64, 128), "BATCHES": (1, 2), "VOCABULARIES": (100, 200), "BEAMS": (1, 2), "PROMPT": 64,
         "TURN": 0.0, "TIMES": 1}  # fmt: skip


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALL.items():
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setitem(bench.DECODER, "width", 16)


def test_memory_counts_live_tensors() -> None:
    weight = torch.randn(10, 10)  # existed before
    with torch.no_grad(), Alive() as alive:
        x = torch.ones(10, 10)
        y = x @ weight.t()
        assert (alive.now, alive.most) == (800, 800)
        z = y.relu()
        del y
        view = z[0]
        assert (alive.now, alive.most) == (800, 1200)
        del z
        assert alive.now == 800  # the view holds all of it
        del view, x
        assert (alive.now, alive.most) == (0, 1200)


def test_gradients_and_activations_are_counted() -> None:
    weight = torch.randn(10, 10, requires_grad=True)
    with Alive() as alive:
        loss = (weight * weight).exp().sum()
        assert alive.now == 404  # exp keeps its output, the product its inputs
        loss.backward()
    assert alive.now == 404  # the loss and the gradient
    assert alive.most >= 800


def test_an_exponent_is_fitted_to_the_upper_half() -> None:
    at = [1, 10, 100, 1000]
    assert bench.exponent(at, [5.0, 5.0, 3e4, 3e6]) == 2.0
    assert bench.exponent(at, [7 * n**0.5 for n in at]) == 0.5
    assert bench.exponent([1], [2]) is None


def test_memory_grows_as_predicted(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Explicit attention keeps its maps for the backward pass, and the fused kernel does not."""
    sizes = {}
    for kind in bench.LAYERS:
        for length in (256, 512):
            start, _ = bench._layer(kind, True, "cpu", length)
            with Alive() as alive:
                start()()
            sizes[kind, length] = alive.most
    ratio = {kind: sizes[kind, 512] / sizes[kind, 256] for kind in bench.LAYERS}
    assert all(1.5 < ratio[kind] < 2.3 for kind in ("rnn", "lstm", "convolution", "local attention"))
    maps = 2 * 4 * 4 * 256**2
    for limit in (0, 256**2):
        for name in ("SMALL_MAP", "ONEDNN_TRAINED_MAP"):
            monkeypatch.setattr(attention, name, limit)
        start, _ = bench._layer("attention", True, "cpu", 256)
        with Alive() as alive:
            start()()
        assert (alive.most > maps) == (limit > 0)


def test_the_cache_size_is_counted(small: None) -> None:
    sizes = []
    for length in (64, 128):
        start, _ = bench._writing("cpu", length=length)
        with Alive() as alive:
            run = start()
            sizes.append(alive.now)
        run()
    assert sizes[1] - sizes[0] == pytest.approx(
        2 * 4 * 64 * 16 * 4, rel=0.01
    )  # keys and values of 4 layers, 16 wide, float32


def test_layers_mix_all_positions_of_a_text() -> None:
    for kind, build in bench.LAYERS.items():
        x = torch.randn(1, 128, bench.WIDTH)
        assert build()(x).shape == x.shape, kind


def test_the_table_and_constant_costs_are_written(
    small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    curve = {"part": "layer, forward", "name": "rnn", "against": "length", "at": [64, 4096], "seconds": [0.001, 0.0645],
             "bytes": [10**6, 64 * 10**6], "seconds_exponent": 1.002, "bytes_exponent": 1.0}  # fmt: skip
    monkeypatch.setattr(bench, "growth", lambda threads: {"curves": [curve]})
    assert main(["growth"]) == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row == ["layer,", "forward", "rnn", "length", "64", "4,096", "0.001", "0.0645", "1.00", "1", "64", "1.00"]
    assert main(["growth", "--repeats", "2"]) == 2
    assert "leave out --against and --repeats" in capsys.readouterr().err

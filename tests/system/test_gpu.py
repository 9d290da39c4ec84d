"""GPU results agree with the CPU: training of every family, predictions, a resumed run, bf16."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.paths import ROOT
from tests.support.families import FAMILIES, STEPS, write_data
from tests.support.predictions import CALLS
from tests.system.training.test_distributed import MANYHEADS, environment, losses

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: PyTorch finds none here"),
    pytest.mark.timeout(900),
]
GPU = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")}
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
ASKED = [name for name in CALLS if name != "refused"]  # of models after `STEPS` steps


def called(*command: str, on: dict[str, str]) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, cwd=ROOT, env=environment(**on), capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """A folder with the data, and the runs of all families in this precision, by the name of the device."""
    data = tmp_path_factory.mktemp("families")
    write_data(data)

    @cache
    def runs(dtype: str, device: str) -> Path:
        if not (data / "gpt2").exists():  # from which one of the families starts
            called(sys.executable, "-m", "tests.support.families", str(data), str(data), "float32", "-", "gpt2", on={})
        out = data / dtype / device
        out.mkdir(parents=True)
        write_data(out)  # in the folder where the later commands look for the data
        on = GPU if device == "cuda" else {}
        called(sys.executable, "-m", "tests.support.families", str(data), str(out), dtype, "-", *FAMILIES, on=on)
        return out

    return runs


@pytest.mark.parametrize(("dtype", "off"), [("float64", 1e-10), ("float32", 1e-4)])
def test_every_family_has_equal_losses_on_cpu_and_gpu(
    trained: Callable[[str, str], Path], dtype: str, off: float
) -> None:
    """To rounding, which 50 steps let grow: on a processor, by other kernels, to 1e-6 in float32, 1e-15 in float64."""
    there, here = trained(dtype, "cuda"), trained(dtype, "cpu")
    runs = [path.relative_to(here).parent for name in FAMILIES for path in (here / name).rglob("metrics.jsonl")]
    assert len(runs) >= len(FAMILIES)
    for run in runs:
        found, wanted = losses(there / run), losses(here / run)
        assert len(found) == STEPS
        assert wanted[-1] != wanted[0]
        np.testing.assert_allclose(found, wanted, rtol=off, err_msg=str(run))


def test_every_verb_gives_consistent_results_for_a_model(trained: Callable[[str, str], Path], tmp_path: Path) -> None:
    """Words to the letter, numbers to three places."""
    models, said = trained("float32", "cpu"), {}
    for device, on in (("cpu", {}), ("cuda", GPU)):
        out = tmp_path / device
        out.mkdir()
        called(sys.executable, "-m", "tests.support.predictions", str(models), str(out), on=on)
        said[device] = {name: (out / name).read_text() for name in ASKED}
    for name in ASKED:
        found, wanted = said["cuda"][name], said["cpu"][name]
        assert NUMBER.sub("#", found) == NUMBER.sub("#", wanted), name
        ours, theirs = ([float(number) for number in NUMBER.findall(text)] for text in (found, wanted))
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-3, err_msg=name)


RUN = (
    "translation", "size=1000", "vocabulary=400", "batch_tokens=2000", "model.width=64", "training.steps=40",
    "training.log_every=1", "training.checkpoint_every=10", "training.average=1", "training.warmup=5",
    "model.dropout=0.1",
)  # fmt: skip


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_killed_run_resumes_to_the_same_weights(
    killed: Callable[[Path, Path], Path], tmp_path: Path, precision: str
) -> None:
    whole = tmp_path / "whole"
    called(*MANYHEADS, "train", *RUN, "--precision", precision, "--out", str(whole), on=GPU)
    again = killed(whole, tmp_path / "again")
    called(*MANYHEADS, "train", *RUN, "--precision", precision, "--out", str(again), "--resume", on=GPU)
    wanted = load_file(whole / "model.safetensors")
    for name, tensor in load_file(again / "model.safetensors").items():
        assert torch.equal(tensor, wanted[name]), name


def test_bf16_learns_like_float32(tmp_path: Path) -> None:
    ends = {}
    for precision in ("float32", "bf16"):
        out = tmp_path / precision
        called(*MANYHEADS, "train", *RUN, "model.dropout=0", "--precision", precision, "--out", str(out), on=GPU)
        ends[precision] = losses(out)
    assert ends["bf16"][-1] < 0.8 * ends["bf16"][0]
    assert ends["bf16"] != ends["float32"]
    np.testing.assert_allclose(ends["bf16"], ends["float32"], rtol=0.05)

"""Nine direct dependencies; each command that needs more names the extra to install."""

import logging
import re
import sys
import tomllib
from contextlib import closing
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from manyheads import directory
from manyheads.analysis import drawing
from manyheads.analysis.figures.confusion import draw_confusion
from manyheads.data.embedded import shipped
from manyheads.data.images.labeled_images import digits
from manyheads.data.readers.compressed import open_decompressed
from manyheads.data.readers.tables import _parquet
from manyheads.data.text.tokenizers import train_unigram
from manyheads.errors import MissingExtra, UserError, extra
from manyheads.training.run_log import Metrics, draw_losses, read_metrics
from tests.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def without(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    for module in modules:
        for name in [*sys.modules, module]:
            if name == module or name.startswith(f"{module}."):
                monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "manyheads.sklearn", raising=False)
    for generator in ("phrases", "languages", "tags"):
        monkeypatch.delitem(sys.modules, f"manyheads.data.embedded.{generator}", raising=False)


def test_there_are_nine_direct_dependencies() -> None:
    names = {re.split("[<>=]", requirement)[0] for requirement in PROJECT["dependencies"]}
    assert names == {
        "numpy", "Pillow", "pydantic", "PyYAML", "rich", "sacrebleu", "safetensors", "tokenizers", "torch"
    }  # fmt: skip


def test_every_extra_named_in_an_error_exists() -> None:
    text = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "manyheads").rglob("*.py"))
    named = set(re.findall(r"extra\(\s*\"(\w+)\"", text)) | set(re.findall(r"manyheads\[(\w+)\]", text))
    assert {"analysis", "export", "hub", "locales", "parquet", "sentencepiece", "serve", "sklearn", "vision"} <= named
    assert named <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize(
    ("module", "name", "use"),
    [
        ("pyarrow", "parquet", lambda folder: list(_parquet(folder / "a.parquet", (), ()))),
        ("pyarrow", "parquet", lambda folder: open_decompressed(folder / "a.txt.zst")),
        ("sentencepiece", "sentencepiece", lambda _: train_unigram(["a b"], 10)),
        ("huggingface_hub", "hub", lambda _: directory.resolve("hub:a/b")),
        (
            "matplotlib",
            "analysis",
            lambda folder: draw_confusion(folder / "a.png", ("a", "b"), np.eye(2, dtype=np.int64)),
        ),
        ("sklearn", "vision", lambda _: digits()),
        ("sklearn", "sklearn", lambda _: import_module("manyheads.sklearn")),
        ("babel", "locales", lambda _: shipped.pairs("en", "it", seed=1, size=1000)),
        ("babel", "locales", lambda _: shipped.languages(seed=2, size=48_000)),
        ("babel", "locales", lambda _: shipped.tagged("de", seed=1, size=8000)),
    ],
)
def test_a_missing_extra_is_named(
    module: str, name: str, use: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in ("a.parquet", "a.txt.zst"):
        (tmp_path / file).write_bytes(b"PAR1")
    without(monkeypatch, module)
    assert callable(use)
    with pytest.raises(UserError, match=rf"needs {module}\S*: pip install 'manyheads\[{name}\]'$") as caught:
        use(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_shipped_corpus_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "babel")
    assert len(shipped.pairs("en", "de", seed=1, size=30_000).train) == 30_000
    assert len(shipped.tagged("en", seed=1, size=8000).train) == 8000
    assert len(set(shipped.languages(seed=1, size=48_000).train.labels)) == 60
    with pytest.raises(UserError, match=r"available without an extra: .*pairs-en-de-seed1-size30000"):
        shipped.pairs("en", "de", seed=2, size=30_000)


def test_missing_matplotlib_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without(monkeypatch, "tensorboard", "matplotlib")
    with caplog.at_level(logging.INFO), closing(Metrics(tmp_path, 0, 0)) as metrics:
        metrics.log(1, {"loss": 2.0})
        metrics.log(1, {"epoch": 1, "validation": {"loss": 1.0}})
        draw_losses(tmp_path, by_epoch=True)
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2
    assert [file.name for file in tmp_path.iterdir()] == ["metrics.jsonl"]
    (line,) = caplog.messages
    assert "no TensorBoard events and no loss.png" in line
    assert "pip install 'manyheads[analysis]'" in line


def test_a_missing_picture_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with drawing.optional(), extra("analysis", "a picture"):
        raise ModuleNotFoundError("no module", name="matplotlib")
    assert caplog.messages == ["no picture: a picture needs matplotlib: pip install 'manyheads[analysis]'"]
    with pytest.raises(UserError, match="other"), drawing.optional():
        raise UserError("other")
    assert issubclass(MissingExtra, UserError)

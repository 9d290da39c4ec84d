"""The recipe `translation/parts` and the program `gradients`: models that lack a part."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import manyheads
from manyheads import directory
from manyheads.core.runtime import prepare
from manyheads.errors import UserError
from manyheads.inference import compile_model
from manyheads.models.transformer import Transformer, TransformerConfig
from manyheads.tasks import train as training
from manyheads.tasks.translation import predictor
from papers.ablations import run as ablations
from papers.ablations.__main__ import main
from papers.ablations.parts import MODELS
from papers.ablations.recipes import RECIPES, ROWS
from tests.contracts.tasks.translation.conftest import write_corpus
from tests.contracts.tasks.translation.test_run import SMALL

train = partial(training.train, recipes=RECIPES)
CONFIG = TransformerConfig(
    20, 20, pad=19, end=0, start=19, width=16, encoder_layers=2, decoder_layers=2, encoder_heads=2, decoder_heads=2,
    encoder_feed_forward=24, decoder_feed_forward=24, dropout=0.0, norm="pre", final_norm=True, key_width=3,
)  # fmt: skip
SOURCE = torch.randint(1, 19, (3, 7), generator=torch.Generator().manual_seed(1))
TARGET = torch.randint(1, 19, (3, 6), generator=torch.Generator().manual_seed(2))
LENGTHS = torch.tensor([7, 2, 4])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus")


def settings(corpus: Path, **more: Any) -> dict[str, Any]:
    small = {key: value for key, value in SMALL.items() if not key.endswith("_heads")}
    return {**small, "data": str(corpus), "training.steps": 8, "training.validate_every": 4, **more}


def model_without(part: str, **changes: Any) -> Transformer:
    torch.manual_seed(0)
    return MODELS[part](TransformerConfig(**{**vars(CONFIG), **changes}))


@pytest.mark.parametrize("part", MODELS)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_model_without_a_part_decodes_as_it_reads(part: str, norm: str) -> None:
    """Steps with a cache and compiled models give the logits of the whole target, and no format takes the model."""
    model = model_without(part, norm=norm, final_norm=norm == "pre").eval()
    with torch.inference_mode():
        whole, cache = model(SOURCE, LENGTHS, TARGET), model.start(SOURCE, LENGTHS, 6)
        steps = torch.cat([model.step(TARGET[:, :2], cache), model.step(TARGET[:, 2:], cache)], 1)
        torch.testing.assert_close(steps, whole, rtol=0, atol=1e-5)
        fast = compile_model(model, prepare("float32", threads=1))
        torch.testing.assert_close(fast(SOURCE, LENGTHS, TARGET), whole, rtol=0, atol=1e-5)
        full = model_without("nothing", norm=norm, final_norm=norm == "pre").eval()
        assert torch.allclose(full(SOURCE, LENGTHS, TARGET), whole, rtol=0, atol=1e-3) == (part == "nothing")
        weights = full.state_dict()
        assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    if part != "nothing":
        with pytest.raises(UserError, match="no model type can represent this No"):
            directory.family_of(model)


def test_each_model_lacks_its_part() -> None:
    x = torch.randn(2, 5, 16)
    block: Any = model_without("residual").encoder.blocks[0]
    attended = block.attention(block.attention_norm(x))
    torch.testing.assert_close(block(x), block.feed_forward(block.feed_forward_norm(attended)))
    block = model_without("residual", norm="post").encoder.blocks[0]
    attended = block.attention_norm(block.attention(x))
    torch.testing.assert_close(block(x), block.feed_forward_norm(block.feed_forward(attended)))
    block = model_without("feed_forward").encoder.blocks[0]
    torch.testing.assert_close(block(x), x + block.attention(block.attention_norm(x)))
    # Theirs divides by sqrt(8), ours by nothing: PyTorch's attention with queries times sqrt(8).
    ours: Any = model_without("scale", key_width=None).encoder.blocks[0]
    theirs = nn.MultiheadAttention(16, 2, batch_first=True)
    with torch.no_grad():
        own = ours.attention
        theirs.in_proj_weight.copy_(torch.cat([own.query.weight * 8**0.5, own.key.weight, own.value.weight]))
        theirs.out_proj.load_state_dict(own.output.state_dict())
        torch.testing.assert_close(own(x), theirs(x, x, x)[0])
    # Without positions, the order of the source changes nothing.
    model = model_without("positions").eval()
    torch.testing.assert_close(model(SOURCE, None, TARGET), model(SOURCE.flip(1), None, TARGET), rtol=0, atol=1e-5)


def test_rows_train_resume_and_are_scored(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = settings(corpus, rows=["full", "no-residual", "one-head"])
    table: Any = train("translation/parts", own, out=tmp_path / "whole")
    assert [line.split()[0] for line in table.splitlines()[1:]] == own["rows"]
    # A run that is killed during the scoring of a model is scored again, by its saved weights.
    own["rows"] = ["no-residual"]
    original = predictor.Translator.evaluate
    monkeypatch.setattr(predictor.Translator, "evaluate", lambda *_, **__: (_ for _ in ()).throw(MemoryError))
    with pytest.raises(MemoryError):
        train("translation/parts", {**own, "training.steps": 8}, out=tmp_path / "parts")
    monkeypatch.setattr(predictor.Translator, "evaluate", original)
    train("translation/parts", own, out=tmp_path / "parts", resume=True)
    one, other = (
        json.loads((tmp_path / name / "no-residual" / "result.json").read_text()) for name in ("whole", "parts")
    )
    assert one["metrics"] == other["metrics"]
    assert one["overrides"] == {**other["overrides"], "data": str(corpus)}
    assert one["overrides"]["rows"] == "no-residual"
    assert "without" not in one["overrides"]
    assert one["flops"] > 0
    assert {"bleu_moses_lc", "loss", "perplexity"} <= one["metrics"].keys()
    entries = [json.loads(line) for line in (tmp_path / "parts/no-residual/metrics.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries if "validation" in entry] == [4, 8]
    with pytest.raises(UserError, match="this is not a model directory"):
        manyheads.load(tmp_path / "parts" / "no-residual")
    assert manyheads.load(tmp_path / "whole" / "one-head").model.config.encoder_heads == 1


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rows": ["no-heads"]}, "rows: no model no-heads: expected some of full, no-residual"),
        ({"rows": ["batch"], "model.normalization": "none"}, "model.normalization: the row batch sets this"),
        ({"preset": "gnmt/tiny", "model": {}}, "expected a preset of the Transformer, such as tiny"),
        ({"without": "scale"}, "without: unknown setting"),
    ],
)
def test_a_wrong_setting_is_reported(corpus: Path, tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        train("translation/parts", {"data": str(corpus), **wrong}, out=tmp_path / "a")


def test_the_gradients_of_all_layers_are_drawn(tmp_path: Path) -> None:
    small = [
        "size=1000", "vocabulary=200", "batch_tokens=100", "threads=1", "model.width=16", "model.encoder_layers=4",
        "model.decoder_layers=3", "model.encoder_feed_forward=16", "model.decoder_feed_forward=16",
    ]  # fmt: skip
    main(["gradients", *small, "--out", str(tmp_path / "g.png"), "--json", str(tmp_path / "g.json")])
    assert (tmp_path / "g.png").stat().st_size > 5000
    rows = json.loads((tmp_path / "g.json").read_text())["rows"]
    assert list(rows) == list(ROWS)
    for norms in rows.values():
        assert [len(norms[stack]) for stack in ("encoder", "decoder")] == [4, 3]
        assert all(norm > 0 for stack in norms.values() for norm in stack)
    assert ablations.WEIGHTS not in [path.name for path in tmp_path.iterdir()]
    for words, message in {
        "rows=some": "no model some", "foo": "'foo' is not a setting", "preset=gnmt/tiny": "expected a preset of the",
        "--json g.txt": "--json g.txt: expected a file name that ends in .json",
        "model.encoder_heads=2": "model.encoder_heads: the row one-head sets this",
    }.items():  # fmt: skip
        with pytest.raises(UserError, match=message):
            main(["gradients", *words.split(), "--out", str(tmp_path / "g.png")])
    with pytest.raises(UserError, match="expected a file name that ends in .png or .svg or .pdf"):
        main(["gradients", "--out", str(tmp_path / "g.bad")])

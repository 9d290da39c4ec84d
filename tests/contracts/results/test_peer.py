"""Fine-tuning with transformers in a plain loop: learning, resuming, and recording as a reference result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lab import results_keep
from lab.evidence import peer
from lab.evidence.standing import step
from manyheads import directory
from manyheads.core.runtime import prepare
from manyheads.data.text.tokenizers import train_wordpiece
from manyheads.models.bert import Bert, BertConfig
from manyheads.runs import fine_tuning
from manyheads.runs.fine_tuning import start_bert
from manyheads.runs.overrides import apply, from_arguments
from manyheads.tasks.classification.objective import ClassificationObjective
from manyheads.tasks.classification.recipes import ClassificationConfig
from manyheads.tasks.registry import find
from manyheads.tasks.targets import Target
from manyheads.tasks.train import train

transformers = pytest.importorskip("transformers")
WORDS = {"Ann": "PER", "Bob": "PER", "Rome": "LOC", "Oslo": "LOC"}
SIZES: dict[str, Any] = {"width": 16, "layers": 1, "heads": 2, "feed_forward": 32}
SETTINGS = ["threads=1", "training.epochs=60", "training.learning_rate=1e-2", "training.warmup=5", "batch_tokens=128"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bert") / "model"
    tokenizer = train_wordpiece([f"{word} is a good bad one ." for word in WORDS] * 5, 60, lowercase=False)
    torch.manual_seed(0)
    directory.save(path, Bert(BertConfig(vocab=tokenizer.get_vocab_size(), **SIZES)), tokenizer)
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for split in ("train", "val", "test"):
        (folder / "texts").mkdir(exist_ok=True)
        (folder / "tags").mkdir(exist_ok=True)
        rows = "".join(f"{w} is a good one\t1\n{w} is a bad one\t0\n" for w in WORDS)
        (folder / "texts" / f"{split}.tsv").write_text("text\tlabel\n" + rows)
        sentences = "".join(f"{w} B-{kind}\nis O\ngood O\n. O\n\n" for w, kind in WORDS.items())
        (folder / "tags" / f"{split}.conll").write_text(sentences)
    return folder


@pytest.mark.parametrize(
    ("recipe", "folder", "metric"), [("sst2", "texts", "accuracy"), ("conll2003", "tags", "entity_f1")]
)
def test_a_listed_run_learns_continues_and_is_recorded(
    recipe: str, folder: str, metric: str, bert: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(peer, "CHECKPOINT", 8)
    monkeypatch.setattr(results_keep, "RECORDS", tmp_path / "records")
    words = [recipe, f"data={data / folder}", "--init", str(bert), *SETTINGS, "--out", str(tmp_path / "run")]
    assert peer.main(words) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["metrics"][metric]["value"] == 1.0
    assert step(tmp_path / "run") == "step 56 of 60"
    ours: dict[str, Any] = dict(word.split("=") for word in SETTINGS)
    own = train(recipe, {**ours, "data": str(data / folder)}, out=tmp_path / "own", init=str(bert))

    assert own["metrics"][metric]["value"] == 1.0
    assert peer.main([*words, "--resume"]) == 0
    assert "resuming after step" in capsys.readouterr().err
    again = json.loads((tmp_path / "run" / "result.json").read_text())
    assert again["metrics"] == result["metrics"]
    kept = results_keep.keep(tmp_path / "run", f"{recipe}-transformers-1", evidence={"run": "x"})
    assert kept == tmp_path / "records" / "peers" / f"{recipe}-transformers-1.json"
    record = json.loads(kept.read_text())
    assert (record["init"], record["evidence"]) == ("model", {"run": "x"})


def test_batches_and_their_order_are_reproducible(bert: Path, data: Path) -> None:
    """Those that our task makes, token by token."""
    config = apply(find("sst2").config, from_arguments([f"data={data / 'texts'}", *SETTINGS]))
    assert isinstance(config, ClassificationConfig)
    theirs = peer.Peer(config, str(bert))
    tokenizer = directory.load(bert).tokenizer
    assert tokenizer is not None
    sizes = {**SIZES, "vocab": 60, "head": "sequence", "labels": ("negative", "positive")}
    task = ClassificationObjective(
        Bert(BertConfig(**sizes)),
        tokenizer, theirs.splits.train, theirs.splits.validation, compute=prepare(threads=1),
        batch_tokens=config.batch_tokens, batch_items=config.batch_items, max_length=128, truncate=False, auxiliary=0.0,
        seed=config.training.seed, target=Target("classes", ("negative", "positive")),
    )  # fmt: skip

    for epoch in (0, 1):
        for mine, rows in zip(task.batches(epoch), theirs.batches(epoch), strict=True):
            batch = theirs.tensors([theirs.encoded["train"][i] for i in rows])
            assert torch.equal(batch["input_ids"], mine.ids.long())
            assert torch.equal(batch["attention_mask"].sum(1), mine.lengths)


@pytest.mark.parametrize(("recipe", "folder"), [("sst2", "texts"), ("conll2003", "tags")])
def test_without_randomness_both_loops_give_equal_weights(
    recipe: str, folder: str, bert: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head of zeros, no dropout, and rates of the same steps (theirs begin with a step at nought, ours end with one):
    only the loops are left to differ, by the rounding of their sums."""

    def without_a_head(model: Any) -> Any:
        torch.nn.init.zeros_(model.classifier.weight)
        return model

    class Peer(peer.Peer):
        def __init__(self, config: Any, init: str) -> None:
            super().__init__(config, init)
            without_a_head(self.model)
            for module in self.model.modules():
                module.p = 0.0 if isinstance(module, torch.nn.Dropout) else getattr(module, "p", None)

    def start(*arguments: Any) -> Any:
        model, tokenizer = start_bert(*arguments)
        return without_a_head(model), tokenizer

    def rates(*arguments: Any) -> Any:
        schedule = linear(*arguments)
        schedule.step()
        return schedule

    monkeypatch.setattr(fine_tuning, "start_bert", start)
    linear = transformers.get_linear_schedule_with_warmup
    monkeypatch.setattr(transformers, "get_linear_schedule_with_warmup", rates)
    none = {f"model.{kind}": "0" for kind in ("dropout", "attention_dropout")}
    settings = {"threads": "1", "training.epochs": "6", "training.warmup": "2", "batch_tokens": "128", **none}
    settings |= {"data": str(data / folder), "training.learning_rate": "1e-3"}
    train(recipe, settings, out=tmp_path / "own", init=str(bert))
    ours = directory.load(tmp_path / "own").model

    theirs = Peer(apply(find(recipe).config, from_arguments([f"{k}={v}" for k, v in settings.items()])), str(bert))
    (tmp_path / "peer").mkdir()
    peer.train(theirs, tmp_path / "peer")
    theirs.model.save_pretrained(tmp_path / "theirs")
    same = directory.load(tmp_path / "theirs").model.state_dict()
    before = directory.load(bert).model.state_dict()
    moved = sum(float((weight - before[name]).abs().sum()) for name, weight in same.items() if name in before)
    apart = sum(float((weight - same[name]).abs().sum()) for name, weight in ours.state_dict().items())
    assert apart < 1e-3 * moved

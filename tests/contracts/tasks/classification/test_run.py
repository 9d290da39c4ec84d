"""Classification recipes on texts small enough to memorize, from files to a model directory and its commands."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import manyheads
from manyheads import cli, directory
from manyheads.data.text.tokenizers import train_wordpiece
from manyheads.models.adapt import adapt
from manyheads.models.bert import Bert, BertConfig
from manyheads.runs.run import planned_model
from manyheads.tasks.evaluation import evaluate
from manyheads.tasks.registry import RECIPES, find
from manyheads.tasks.train import train

pytestmark = pytest.mark.filterwarnings("ignore:vocabulary=")
FILLING = ["the", "film", "was", "and", "a", "plot", "we", "saw"]
SMALL: dict[str, Any] = {"threads": 1, "training.log_every": 5, "training.checkpoint_every": 50}


def rows(count: int, start: int = 0) -> list[tuple[str, str]]:
    """Return labeled texts in which a single word determines the label."""
    found = []
    for i in range(start, start + count):
        words = [FILLING[(i * 7 + k * k) % len(FILLING)] for k in range(2 + i % 5)]
        words.insert(i % len(words), ("awful", "great")[i % 2])
        found.append((f"{' '.join(words)} {i}.", str(i % 2)))
    return found


def write(folder: Path, *, pairs: bool = False, **splits: list[tuple[str, str]]) -> Path:
    folder.mkdir()
    header = "sentence1\tsentence2\tlabel" if pairs else "text\tlabel"
    for name, items in splits.items():
        lines = [f"{text}\t{'it was ' * pairs}{chr(9) * pairs}{label}\n" for text, label in items]
        (folder / f"{name}.tsv").write_text("".join([f"{header}\n", *lines]), encoding="utf-8")
    return folder


(BAD, _), (GOOD, _) = rows(2, 400)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "texts"
    return write(folder, train=rows(100), val=rows(20, 100), test=rows(30, 200))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT that has not been trained."""
    path = tmp_path_factory.mktemp("models") / "bert"
    tokenizer = train_wordpiece([text for text, _ in rows(300)], 90)
    torch.manual_seed(1)
    config = BertConfig(
        vocab=90, width=16, layers=2, heads=2, feed_forward=32, max_positions=40, head="masked_lm", dropout=0.0,
        attention_dropout=0.0,
    )  # fmt: skip
    directory.save(path, Bert(config), tokenizer)
    return path


@pytest.fixture(scope="module")
def textbook(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {**SMALL, "data": str(data), "vocabulary": 40, "training.learning_rate": 0.02, "batch_items": 10}
    return train("imdb/textbook", settings, out=tmp_path_factory.mktemp("runs") / "textbook").directory


def test_a_run_trains_records_and_evaluates(textbook: Path, data: Path) -> None:
    result = json.loads((textbook / "result.json").read_text())
    assert result["metrics"]["accuracy"]["value"] == 1.0
    assert result["metrics"]["f1"] == {"value": 1.0, "signature": "of the label 'positive'"}
    assert result["data"]["items"] == {"train": 100, "validation": 20, "test": 30}
    assert result["flops"] > 0
    model = manyheads.load(textbook)
    assert model.labels == ("negative", "positive")
    assert evaluate(model)["accuracy"] == result["metrics"]["accuracy"]
    assert evaluate(model, str(data / "val.tsv"))["accuracy"]["value"] == 1.0
    assert [str(labels[0]) for labels in model.classify([GOOD, BAD])] == ["positive", "negative"]


@pytest.mark.parametrize("rival", ["corrected", "rnn", "lstm", "bilstm", "conv1d", "conv2d"])
def test_every_baseline_supports_the_same_verbs(
    rival: str, textbook: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**SMALL, "data": str(data), "vocabulary": 40, "training.learning_rate": 0.02, "batch_items": 10}
    result = train(f"imdb/{rival}", settings, out=tmp_path / "run")
    assert result["metrics"]["accuracy"]["value"] > 0.9
    with pytest.raises(ValueError, match="contains a finished run"):
        train(f"imdb/{rival}", settings, out=tmp_path / "run")
    found = manyheads.compare(manyheads.load(textbook), manyheads.load(tmp_path / "run"))
    assert found["items"] == 30
    capsys.readouterr()
    assert cli.main(["classify", str(tmp_path / "run"), GOOD, BAD, "--top", "2"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == ["positive", "negative"]
    assert [float(line[1]) + float(line[3]) for line in lines] == pytest.approx([1.0, 1.0], abs=2e-4)


def test_a_seed_reproduces_a_run(data: Path, tmp_path: Path) -> None:
    settings = {**SMALL, "data": str(data), "vocabulary": 40, "training.epochs": 1, "batch_items": 10}
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        train("imdb/corrected", {**settings, "training.seed": seed}, out=tmp_path / name)
    one, same, other = ((tmp_path / n / "model.safetensors").read_bytes() for n in ("one", "same", "other"))
    assert one == same != other


@pytest.mark.parametrize("tuned", ["all", "last", "last-four"])
def test_bert_is_fine_tuned_or_frozen(data: Path, bert: Path, tmp_path: Path, tuned: str) -> None:
    settings = {
        **SMALL, "data": str(data), "training.learning_rate": 0.01, "training.epochs": 6, "tuned": tuned,
        "names": ["bad", "good"], "training.warmup": 5,
    }  # fmt: skip
    if tuned == "last-four":
        with pytest.raises(ValueError, match="read is 4: expected at most 2, the number of layers"):
            train("single-sentence", settings, out=tmp_path / "run", init=str(bert))
        return
    result = train("single-sentence", settings, out=tmp_path / "run", init=str(bert))
    assert result["metrics"]["accuracy"]["value"] > 0.9
    before, after = directory.load(bert).model, directory.load(tmp_path / "run").model
    encoder = (after if tuned == "all" else after.bert).encoder.state_dict()
    same = all(torch.equal(encoder[name], tensor) for name, tensor in before.encoder.state_dict().items())
    assert same == (tuned == "last")
    predictor = manyheads.load(tmp_path / "run")
    assert [str(best[0]) for best in predictor.classify([GOOD, BAD])] == ["good", "bad"]
    assert evaluate(predictor)["accuracy"] == result["metrics"]["accuracy"]
    if tuned == "all":
        transformers = pytest.importorskip("transformers")
        pipeline = transformers.pipeline("text-classification", model=str(tmp_path / "run"))
        texts = [GOOD, BAD]
        theirs = [(found["label"], found["score"]) for found in pipeline(texts)]
        ours = [(each[0].label, each[0].probability) for each in predictor.classify(texts)]
        assert [label for label, _ in ours] == [label for label, _ in theirs]
        assert [p for _, p in ours] == pytest.approx([p for _, p in theirs], abs=1e-5)


def test_pairs_are_read_from_files_and_lines(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    log: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    data = write(tmp_path / "pairs", pairs=True, train=rows(100), test=rows(30, 200))
    settings = {**SMALL, "data": str(data), "training.learning_rate": 5e-3, "batch_items": 8, "training.epochs": 8}
    run = tmp_path / "run"
    result = train("sentence-pair", settings, out=run, init=str(bert))
    assert "no validation data: held out" in log.text
    assert result["metrics"]["f1"]["value"] > 0.9
    assert evaluate(manyheads.load(run))["f1"] == result["metrics"]["f1"]
    assert cli.main(["classify", str(run), GOOD, "--pair", "it was", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["text"], found["pair"], found["labels"][0]["label"]) == (GOOD, "it was", "1")
    monkeypatch.setattr("manyheads.cli.lines.stdin", lambda: iter([[f"{GOOD}\tit was", "", f"{BAD}\tit was"]]))
    assert cli.main(["classify", str(run)]) == 0
    shown = capsys.readouterr()
    assert [line.split("\t")[0] for line in shown.out.split("\n")] == ["1", "", "0", ""]
    assert "text 2 is blank" in shown.err
    assert manyheads.load(run).needs_pairs
    with pytest.raises(ValueError, match="this model reads pairs: give the second text too"):
        manyheads.load(run).classify("alone")
    monkeypatch.setattr("manyheads.cli.lines.stdin", lambda: iter([[f"{GOOD}\tit was", "alone"]]))
    assert cli.main(["classify", str(run)]) == 2
    assert "<stdin>:2: this text has 0 tabs: expected two texts separated by one tab" in capsys.readouterr().err


def test_a_foreign_model_reads_pairs_and_single_texts(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing says what it was trained on, so the first text does."""
    loaded = directory.load(bert)
    model, _ = adapt(loaded.model, head="sequence", labels=("a", "b"))
    directory.save(tmp_path / "foreign", model, loaded.tokenizer)

    def classify(*chunks: list[str]) -> int:
        monkeypatch.setattr("manyheads.cli.lines.stdin", lambda: iter(chunks))
        return cli.main(["classify", str(tmp_path / "foreign")])

    for chunks in ([GOOD, f"{GOOD}\tit was"],), ([GOOD], [f"{GOOD}\tit was"]):
        assert classify(*chunks) == 2
        assert "<stdin>:2: this text has a tab, but the first text has none" in capsys.readouterr().err
    for chunks in ([f"{GOOD}\tit was", GOOD],), ([f"{GOOD}\tit was"], [GOOD]):
        assert classify(*chunks) == 2
        assert "<stdin>:2: this text has 0 tabs" in capsys.readouterr().err
    assert classify(["", GOOD], [BAD]) == 0
    long = write(tmp_path / "long", test=[("great " * 50, "a")]) / "test.tsv"
    assert cli.main(["evaluate", str(tmp_path / "foreign"), "--data", str(long)]) == 2
    assert "cut it with truncate=true (--truncate)" in capsys.readouterr().err
    assert cli.main(["evaluate", str(tmp_path / "foreign"), "--data", str(long), "--truncate"]) == 0


def test_other_test_data_may_have_other_columns(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = directory.load(bert)
    model, _ = adapt(loaded.model, head="sequence", labels=("a", "b"))
    directory.save(tmp_path / "foreign", model, loaded.tokenizer)
    (tmp_path / "other.csv").write_text(f"id,review,sentiment\n1,{GOOD},a\n2,{BAD},b\n", encoding="utf-8")
    command = ["evaluate", str(tmp_path / "foreign"), "--data", str(tmp_path / "other.csv")]
    assert cli.main(command) == 2
    assert "for evaluation, pass --columns text=NAME,label=NAME" in capsys.readouterr().err
    assert cli.main([*command, "--columns", "text=review,label=sentiment"]) == 0
    shown = capsys.readouterr()
    assert "2 labels, 2 items" in shown.out
    assert not shown.err
    (tmp_path / "numbers.csv").write_text(f"text,label\n{GOOD},0\n{BAD},b\n", encoding="utf-8")
    assert cli.main([*command[:2], "--data", str(tmp_path / "numbers.csv")]) == 0
    assert "using numeric labels as indices of label names: 0 for a" in capsys.readouterr().err
    assert cli.main([*command, "--columns", "words=review"]) == 2
    assert "unknown column 'words': valid are text, label, pair" in capsys.readouterr().err
    with pytest.raises(ValueError, match="text 1 is a tuple: expected a string"):
        manyheads.load(tmp_path / "foreign").classify([(GOOD, BAD)])


def test_a_dry_run_checks_that_the_data_exist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nope: no such file"):
        train("text-classification", {"data": str(tmp_path / "nope")}, out=tmp_path, dry_run=True)


def test_a_run_resumes_to_the_same_weights(
    data: Path, bert: Path, tmp_path: Path, killed: Callable[[Path, Path], Path]
) -> None:
    settings = {**SMALL, "data": str(data), "training.epochs": 2, "batch_items": 10, "training.checkpoint_every": 7}
    train("single-sentence", {**settings, "model.dropout": 0.1}, out=tmp_path / "whole", init=str(bert))
    parts = killed(tmp_path / "whole", tmp_path / "parts")
    train("single-sentence", {**settings, "model.dropout": 0.1}, out=parts, init=str(bert), resume=True)
    assert (parts / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()


def test_fewer_items_and_missing_weights(data: Path, bert: Path, tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    settings = {**SMALL, "data": str(data), "training.epochs": 1, "items": 20, "training.learning_rate": 1e-9}
    result = train("single-sentence", settings, out=tmp_path / "run", init=str(bert))
    assert result["data"]["items"]["train"] == 20
    few = train("bert/imdb-1000", {**settings, "model.dropout": 0.2}, out=tmp_path / "few", init=str(bert))
    assert few["overrides"]["model.dropout"] == 0.2
    own = {key: value for key, value in settings.items() if key != "items"}
    few = train("bert/imdb-1000", {**own, "items": 10}, out=tmp_path / "own", init=str(bert))
    assert "model.dropout" not in few["overrides"]
    assert directory.load(tmp_path / "own").model.config.dropout == 0.1  # the recipe's, the model's is 0
    log.clear()
    train("single-sentence", {**settings, "scratch": True}, out=tmp_path / "new", init=str(bert))
    assert "with new weights: scratch=true" in log.text and "starting from" not in log.text  # noqa: PT018
    kept, new = (directory.load(tmp_path / name).model for name in ("run", "new"))
    before = directory.load(bert).model.embedding.weight
    assert torch.allclose(kept.embedding.weight, before, atol=1e-6)
    assert (new.embedding.weight - before).abs().max() > 0.01


@pytest.mark.parametrize(
    ("recipe", "settings", "message"),
    [
        ("imdb/textbook", {}, "imdb/textbook requires the setting data: data=DIR"),
        ("imdb/conv1d", {"data": "absent"}, "absent: no such file"),
        ("text-classification", {"preset": "tfidf"}, "preset 'tfidf' does not fit this task"),
        ("imdb/lstm", {"data": "absent", "init": "bert"}, "imdb/lstm cannot start from another model"),
        ("sst2", {"data": "absent"}, "sst2 fine-tunes a model: give the model to start from with --init"),
        ("text-classification", {"preset": "text-classifier/book"}, "unknown preset 'text-classifier/book'"),
        ("text-classification", {"preset": "book"}, "unknown preset 'book'"),
        ("text-classification", {"model": {"widht": 3}}, "unknown settings widht"),
        ("text-classification", {"max_length": 1}, "max_length is 1: expected an integer from 2"),
        ("single-sentence", {"data": "none.tsv", "init": "none"}, "none: no such directory: expected a model"),
    ],
)
def test_mistakes_are_reported_before_writing(
    recipe: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train(recipe, settings, out=tmp_path / "run", init=settings.pop("init", None))


def test_untrainable_data_are_reported(data: Path, bert: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"found single texts: give the second column as columns\.pair"):
        train("sentence-pair", {**SMALL, "data": str(data)}, out=tmp_path / "a", init=str(bert))
    pairs = write(tmp_path / "pairs", pairs=True, train=rows(100), test=rows(3, 200))
    with pytest.raises(ValueError, match="pairs of texts require a pretrained model: add --init"):
        train("text-classification", {**SMALL, "data": str(pairs), "vocabulary": 60}, out=tmp_path / "b")
    long = write(tmp_path / "long", train=rows(50), val=rows(5, 60), test=[("great " * 50, "1")])
    with pytest.raises(ValueError, match=r"test\.tsv:2 has 52 tokens, the limit is 40"):
        train("single-sentence", {**SMALL, "data": str(long)}, out=tmp_path / "c", init=str(bert))


def test_a_dry_run_plans_every_recipe(bert: Path, tmp_path: Path) -> None:
    planned = train("imdb/textbook", out=tmp_path / "run", dry_run=True)
    assert planned["parameters"] == 650_689
    assert train("mrpc", out=tmp_path / "run", dry_run=True, init=str(bert))["parameters"] > 0
    assert not (tmp_path / "run").exists()
    for name in ("text-classification", "imdb/corrected", "imdb/lstm", "imdb/conv2d"):
        assert sum(p.numel() for p in planned_model(RECIPES[name]).parameters()) > 10_000
    with pytest.raises(ValueError, match="fine-tunes a model"):
        planned_model(RECIPES["sst2"])


@pytest.mark.slow
def test_the_real_minilm_starts_a_fine_tuning(real_data: Callable[[str], Path], minilm: Path, tmp_path: Path) -> None:
    settings = {**SMALL, "data": str(real_data("mrpc")), "items": 16, "training.epochs": 1, "scored": "validation"}
    result = train("mrpc", settings, out=tmp_path / "run", init=str(minilm))
    assert result["parameters"] == 22_713_986  # MiniLM's 22,713,216 and a classifier of two labels
    assert result["data"]["items"]["test"] == 1_725


def test_numeric_labels_are_names_not_indices(tmp_path: Path) -> None:
    """When the run is scored again, label "1" must not be read as an index if another label is not a number."""
    names = {"0": "2", "1": "none"}
    texts = [(text, names[label]) for text, label in rows(60)]
    data = write(tmp_path / "mixed", train=texts, val=texts[:10], test=texts[20:40])
    settings = {**SMALL, "data": str(data), "vocabulary": 40, "training.learning_rate": 0.02, "batch_items": 10}
    result = train("imdb/textbook", {**settings, "names": ["2", "none"]}, out=tmp_path / "run")
    model = manyheads.load(str(tmp_path / "run"))
    assert evaluate(model)["accuracy"]["value"] == result["metrics"]["accuracy"]["value"]
    assert evaluate(model, str(data))["accuracy"]["value"] == result["metrics"]["accuracy"]["value"]


def test_warmup_is_limited_in_a_short_fine_tuning(data: Path, bert: Path, tmp_path: Path) -> None:
    settings = {**SMALL, "data": str(data), "training.log_every": 1, "batch_items": 10}
    train("single-sentence", settings, out=tmp_path / "run", init=str(bert))  # 30 steps; the recipe warms up for 100
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    rates = [line["learning_rate"] for line in lines if "learning_rate" in line]
    assert max(rates) > 2.9e-5
    assert rates[-1] < 0.1 * max(rates)


def test_final_weights_can_be_selected_by_accuracy(data: Path, tmp_path: Path) -> None:
    settings = {
        **SMALL, "data": str(data), "vocabulary": 40, "training.learning_rate": 0.02, "batch_items": 10,
        "training.metric": "accuracy", "training.patience": None,
    }  # fmt: skip
    result = train("imdb/textbook", settings, out=tmp_path / "run")
    assert result["metrics"]["accuracy"]["value"] == 1.0


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"tuned": "last"}, {}, "tuned: no effect without a model to start from"),
        ({"scratch": True}, {}, "scratch: no effect without a model to start from"),
        ({"tokens": "words"}, {"init": "bert"}, "tokens: determined by the initial model"),
        ({"size": 5}, {}, "size: no effect with data, only with the built-in corpus"),
        ({"batch_tokens": -5}, {"dry_run": True}, "batch_tokens is -5: expected an integer from 1"),
        ({"threads": 0}, {"dry_run": True}, "threads is 0: expected an integer from 1"),
        ({}, {"out": ""}, "out is empty"),
    ],
)
def test_settings_without_any_effect_are_refused(
    settings: dict[str, Any], options: dict[str, Any], message: str, data: Path, bert: Path, tmp_path: Path
) -> None:
    start = {"init": str(bert)} if "init" in options else {}
    with pytest.raises(ValueError, match=message):
        train("text-classification", {**settings, "data": str(data)}, **{"out": tmp_path / "run", **options, **start})


def test_scoring_reports_skipped_items_and_small_data(
    textbook: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.tsv"
    file.write_text(f"text\tlabel\n{GOOD}\tpositive\nragged\n{BAD}\tnegative\n")
    assert cli.main(["evaluate", str(textbook), "--data", str(file), "--skip-bad-lines"]) == 0
    shown = capsys.readouterr()
    assert "2 items" in shown.out
    assert f"skipped items: 1 ({file}: expected 2 columns" in shown.err
    assert cli.main(["compare", str(textbook), str(textbook), "--data", str(file), "--skip-bad-lines"]) == 0
    assert "right: too few items for a bootstrap" in capsys.readouterr().out
    assert cli.main(["evaluate", str(textbook), "--skip-bad-lines"]) == 2
    assert "--skip-bad-lines applies only to data given with --data" in capsys.readouterr().err


def test_an_oversized_model_is_reported(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["train", "text-classification", f"data={data}", "model.width=1000000000", "--out", str(tmp_path / "run")]
    assert cli.main(given) == 2
    assert "width is 1000000000: expected an integer from 1 to" in capsys.readouterr().err


@pytest.mark.parametrize(("recipe", "epochs"), [("text-classification", 4), ("tagging", 8)])
def test_settings_equal_to_the_recipes_count_as_set_with_init(
    recipe: str, epochs: int, bert: Path, tmp_path: Path
) -> None:
    def planned(settings: dict[str, Any]) -> Any:
        own = settings | ({"size": 1000} if recipe == "tagging" else {"items": 500, "truncate": True})
        return train(recipe, own, out=tmp_path / "run", init=str(bert), dry_run=True)["config"]["training"]

    assert find(recipe).config.training.epochs == epochs
    assert planned({})["epochs"] == 3
    assert planned({"training.epochs": epochs})["epochs"] == epochs
    assert planned({"training.learning_rate": 0.5})["learning_rate"] == 0.5

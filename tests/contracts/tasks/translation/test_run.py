"""Translation recipe on a corpus small enough to memorize, from files to a directory for other tools."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import manyheads
from manyheads.models.presets import build, preset
from manyheads.tasks.comparison import compare
from manyheads.tasks.evaluation import evaluate
from manyheads.tasks.train import train
from manyheads.tasks.translation import predictor
from manyheads.tasks.translation.ablation import rows
from manyheads.tasks.translation.recipes import ABLATE
from tests.contracts.tasks.translation.conftest import write_corpus

SMALL: dict[str, Any] = {
    "vocabulary": 60,
    "threads": 1,
    "batch_tokens": 256,
    "model.width": 32,
    "model.encoder_layers": 1,
    "model.decoder_layers": 1,
    "model.encoder_heads": 2,
    "model.decoder_heads": 2,
    "model.encoder_feed_forward": 64,
    "model.decoder_feed_forward": 64,
    "training.checkpoint_every": 5,
    "training.log_every": 5,
}


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run that has memorized its corpus."""
    out = tmp_path_factory.mktemp("runs") / "run"
    settings = {**SMALL, "data": str(corpus), "training.steps": 300, "training.learning_rate": 5e-3}
    train("translation", settings, out=out)
    return out


def lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def test_a_small_corpus_can_be_overfitted(run: Path, corpus: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    assert result["metrics"]["exact_match"]["value"] == 1.0
    assert result["metrics"]["bleu_13a"]["value"] > 99
    assert "tok:13a" in result["metrics"]["bleu_13a"]["signature"]
    for key in ("recipe", "overrides", "data", "wall_seconds", "hardware", "flops", "parameters", "seed", "commit"):
        assert key in result
    assert manyheads.load(run).translate(lines(corpus / "test.en")) == lines(corpus / "test.de")


def test_lines_keep_their_order_and_blanks(run: Path, corpus: Path) -> None:
    translator = manyheads.load(run)
    sources, targets = lines(corpus / "test.en"), lines(corpus / "test.de")
    mixed = ["", *sources[5:9], " ", sources[0], ""]
    assert translator.translate(mixed) == ["", *targets[5:9], "", targets[0], ""]
    assert translator.translate(sources[3]) == targets[3]
    assert translator.translate([]) == []


def test_batches_do_not_change_translations(run: Path, corpus: Path) -> None:
    translator = manyheads.load(run)
    translator.model.double()
    sources = ["dog", "red dog and blue cat 5", "one two", *lines(corpus / "test.en")[:5]]
    for beam in (1, 4):
        assert translator.translate(sources, beam=beam) == [translator.translate(s, beam=beam) for s in sources]


def test_translation_scores_equal_forced_scores(run: Path, corpus: Path) -> None:
    translator = manyheads.load(run)
    sources = lines(corpus / "test.en")[:4]
    best = [found[0] for found in translator.nbest(sources, 3)]
    forced = translator.score(sources, [t.text for t in best])
    assert [f.log_probability for f in forced] == pytest.approx([b.log_probability for b in best], abs=1e-4)
    scores = [t.score for t in translator.nbest(sources[:1], 3)[0]]
    assert scores == sorted(scores, reverse=True)
    with pytest.raises(ValueError, match="beam"):
        translator.nbest(sources, 5, beam=4)


def test_scores_do_not_depend_on_the_chunk_size(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long target among short sources takes no more memory than by itself."""
    translator = manyheads.load(run)
    sources, targets = ["dog"] * 12, ["Hund " * (1 + 3 * (i % 4)) for i in range(12)]
    whole = translator.score(sources, targets)
    sizes = list[int]()
    inner = predictor.pad_sources

    def counted(model: Any, encoded: Any) -> Any:
        sizes.append(len(encoded))
        return inner(model, encoded)

    monkeypatch.setattr(predictor, "pad_sources", counted)
    monkeypatch.setattr(predictor, "LOGITS", 30 * translator.target_tokenizer.get_vocab_size())
    parts = translator.score(sources, targets)
    assert [p.log_probability for p in parts] == pytest.approx([w.log_probability for w in whole], abs=1e-4)
    assert sum(sizes) == 12
    assert sizes[-1] < sizes[0]


def test_an_overlong_text_is_truncated_only_on_request(run: Path) -> None:
    translator = manyheads.load(run)
    with pytest.raises(ValueError, match="text 2 has .* tokens, the model takes 512"):
        translator.translate(["dog", "dog " * 600])
    assert len(translator.translate(["dog", "dog " * 600], beam=1, truncate=True)) == 2


def test_the_directory_opens_in_transformers_with_the_same_greedy_output(run: Path, corpus: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(run)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(run)
    sources = lines(corpus / "test.en")[:8]
    batch = tokenizer(sources, return_tensors="pt", padding=True)
    written = model.generate(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], num_beams=1)
    theirs = tokenizer.batch_decode(written, skip_special_tokens=True)
    assert theirs == manyheads.load(run).translate(sources, beam=1)


def test_a_run_is_reevaluated_and_compared(run: Path, corpus: Path) -> None:
    translator = manyheads.load(run)
    recorded = json.loads((run / "result.json").read_text())["metrics"]
    assert evaluate(translator)["bleu_13a"] == recorded["bleu_13a"]
    assert evaluate(translator, str(corpus / "val"))["exact_match"]["value"] == 1.0
    found = compare(translator, translator)
    assert found["bootstrap"]["BLEU"]["difference"] == 0
    assert not found["most_changed"]


def test_training_continues_from_another_model(run: Path, corpus: Path, tmp_path: Path) -> None:
    settings = {"data": str(corpus), "threads": 1, "training.steps": 1, "training.learning_rate": 1e-9}
    out = tmp_path / "tuned"
    result = train("translation", settings, out=out, init=str(run))
    assert result["metrics"]["exact_match"]["value"] == 1.0
    assert (out / "tokenizer.json").read_bytes() == (run / "tokenizer.json").read_bytes()
    with pytest.raises(ValueError, match=r"model\.width: determined by the initial model"):
        train("translation", {**settings, "model.width": 64}, out=tmp_path / "wide", init=str(run))


def test_the_blog_recipe_equals_the_tutorial(corpus: Path, tmp_path: Path) -> None:
    planned = train("translation/blog", out=tmp_path / "run", dry_run=True)
    assert planned["parameters"] == 33_570_389
    training = planned["config"]["training"]
    assert (training["learning_rate"], training["betas"], training["eps"], training["epochs"]) == (
        1e-4, (0.9, 0.98), 1e-9, 18,
    )  # fmt: skip


def test_xavier_initializes_the_embeddings() -> None:
    torch.manual_seed(0)
    model = build(preset("transformer/blog", embedding_init="xavier", source_vocab=2000, target_vocab=1000))
    for embedding in (model.source_embedding, model.target_embedding):
        bound = (6 / sum(embedding.weight.shape)) ** 0.5
        assert 0.99 * bound < embedding.weight.abs().max() <= bound
        assert not embedding.weight[embedding.padding_idx].any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"smoothing": 2.0}, "smoothing is 2.0: expected a number from 0"),
        ({"beam": 0}, "beam is 0: expected an integer from 1"),
        ({"alpha": -1.0}, "alpha is -1.0: expected a number from 0"),
        ({"training.width": 99}, "always the width of the model"),
        ({"tokenizer": "words"}, "tokenizer=words builds a vocabulary for each language: add joint=false"),
        ({"vocabulary": [50, 60]}, "expected one size for a joint vocabulary. Give one number, or add joint=false"),
        ({"vocabulary": 3}, "vocabulary is 3: expected .* an integer from 4"),
    ],
)
def test_impossible_run_settings_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        train("translation", settings, out=tmp_path / "run", dry_run=True)


def test_a_dry_run_finds_two_named_files(corpus: Path, tmp_path: Path) -> None:
    for data in (f"{corpus}/train.en,{corpus}/train.de", f"{corpus}/train"):
        assert train("translation", {"data": data}, out=tmp_path / "x", dry_run=True)["parameters"]
    with pytest.raises(FileNotFoundError, match="nope.en: no such file"):
        train("translation", {"data": f"{corpus}/nope.en,{corpus}/train.de"}, out=tmp_path / "x", dry_run=True)


def test_a_dry_run_plans_the_model_to_start_from(run: Path, tmp_path: Path) -> None:
    planned = train("translation", {"size": 1000}, out=tmp_path / "x", init=str(run), dry_run=True)
    assert planned["parameters"] == sum(p.numel() for p in manyheads.load(run).model.parameters())
    with pytest.raises(ValueError, match="no config.json"):
        train("translation", {}, out=tmp_path / "x", init=str(tmp_path), dry_run=True)


def test_runs_of_different_kinds_are_not_compared(run: Path) -> None:
    class Other:
        path = run

        def outcome(self) -> None: ...

    with pytest.raises(ValueError, match=r"Translator \(.*\) and Other \(.*\): expected two models of the same task"):
        compare(manyheads.load(run), Other())  # type: ignore[arg-type]


def test_overlong_training_sentences_are_reported_or_truncated(corpus: Path, tmp_path: Path) -> None:
    settings = {**SMALL, "data": str(corpus), "training.steps": 1, "max_length": 3}
    with pytest.raises(ValueError, match=r"train\.en: .* longer than 3 tokens, the first is sentence 1 .*truncate"):
        train("translation", settings, out=tmp_path / "run")
    assert train("translation", {**settings, "truncate": True}, out=tmp_path / "cut")["steps"] == 1


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    planned = train("translation/wmt14-base", out=tmp_path / "run", dry_run=True)
    assert planned["parameters"] == 63_082_496
    assert planned["config"]["training"]["steps"] == 100_000
    assert planned["estimate"]["hours"] > 0
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="data=DIR"):
        train("translation/wmt14-base", out=tmp_path / "run")


def test_the_ablation_varies_one_choice_per_row(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = rows(ABLATE)
    assert {name[0] for name in found} == {"b", "A", "B", "C", "D", "E"}
    assert all(len(changes) in (1, 2) for name, changes in found.items() if name != "base")
    monkeypatch.setattr(
        "manyheads.tasks.translation.ablation.rows",
        lambda config: {n: found[n] for n in ("base", "E learned positions")},
    )
    table: Any = train(
        "translation/ablate",
        {**SMALL, "data": str(corpus), "training.steps": 3, "training.warmup": 1},
        out=tmp_path / "a",
    )
    assert [line.split("  ")[0] for line in table.splitlines()[1:]] == ["base", "E learned positions"]
    one, two = (json.loads((tmp_path / "a" / n / "result.json").read_text()) for n in ("base", "E-learned-positions"))
    assert two["parameters"] - one["parameters"] == 512 * 32
    assert two["overrides"] == {**one["overrides"], "model.positions": "learned"}  # each row tells its own change
    assert load_file(tmp_path / "a" / "E-learned-positions" / "model.safetensors")
    with pytest.raises(ValueError, match="translation/ablate cannot start from another model"):
        train("translation/ablate", {}, out=tmp_path / "b", init=str(tmp_path / "a" / "base"))


def test_a_stopped_ablation_names_its_resume_command(
    corpus: Path, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    settings = {**SMALL, "data": str(corpus), "training.steps": 3, "training.warmup": 1}
    assert not train("translation/ablate", settings, out=tmp_path / "a", max_minutes=1e-6)
    assert f"--out {tmp_path / 'a'} --resume" in log.text


def test_an_overlong_test_sentence_is_reported_before_training(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "corpus")
    (folder / "test.en").write_text("dog\n" + "cat " * 600 + "\n", encoding="utf-8")
    (folder / "test.de").write_text("Hund\nKatze\n", encoding="utf-8")
    settings = {**SMALL, "data": str(folder), "training.steps": 1}
    with pytest.raises(ValueError, match=r"test\.en: 1 of 2 sentences are longer than 512 tokens"):
        train("translation", settings, out=tmp_path / "run")
    result = train("translation", {**settings, "truncate": True}, out=tmp_path / "cut")
    assert result["decoding"]["truncate"]


def test_changed_test_data_are_detected(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "corpus")
    train("translation", {**SMALL, "data": str(folder), "training.steps": 1}, out=tmp_path / "run")
    (folder / "test.en").write_text("red dog\n", encoding="utf-8")
    (folder / "test.de").write_text("rot Hund\n", encoding="utf-8")
    translator = manyheads.load(tmp_path / "run")
    with pytest.raises(ValueError, match="changed since the run"):
        evaluate(translator)
    assert translator.outcome(str(folder / "test")).references == ["rot Hund"]


def test_held_out_data_are_reported(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    folder = write_corpus(tmp_path / "corpus")
    train("translation", {**SMALL, "data": str(folder / "train"), "training.steps": 1}, out=tmp_path / "run")
    assert "no validation data: held out" in log.text


def test_weights_are_readable_like_the_other_files(run: Path) -> None:
    assert (run / "model.safetensors").stat().st_mode == (run / "config.json").stat().st_mode


def test_a_blank_source_cannot_be_scored(run: Path) -> None:
    with pytest.raises(ValueError, match="source 2 is blank"):
        manyheads.load(run).score(["dog", " "], ["Hund", "Katze"])


def test_a_foreign_state_folder_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs" / "state").mkdir(parents=True)
    (tmp_path / "theirs" / "state" / "mine.txt").write_text("keep")
    with pytest.raises(ValueError, match="contains no run"):
        train("translation", {**SMALL, "data": str(corpus), "training.steps": 1}, out=tmp_path / "theirs")

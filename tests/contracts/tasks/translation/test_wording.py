"""Translations with given words, at random, with alignments and from files; averages; BLEU during training."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sacrebleu.metrics import BLEU
from safetensors.torch import load_file
from transformers import GenerationConfig

import manyheads
from manyheads import cli, directory
from manyheads.core.recording import record
from manyheads.data.text.tokenizers import train_unigram
from manyheads.errors import UserError
from manyheads.export.average import average
from manyheads.models.presets import build, preset
from manyheads.tasks.translation.decoding import decode
from manyheads.tasks.translation.options import Options, decoding_of
from manyheads.tasks.translation.predictor import Translator
from tests.contracts.tasks.translation.test_run import SMALL, lines


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    settings: dict[str, Any] = {
        **SMALL, "data": str(corpus), "training.steps": 90, "training.learning_rate": 5e-3,
        "training.validate_every": 30,
        "training.metric": "bleu_13a", "training.keep_every": 10, "beam": 2, "alpha": 1.0, "training.average": 1,
    }  # fmt: skip
    manyheads.train("translation", settings, out=out)
    return out


@pytest.fixture(scope="module")
def translator(run: Path) -> Translator:
    found = manyheads.load(run)
    assert isinstance(found, Translator)
    return found


def test_validation_measures_bleu_of_greedy_translations(run: Path, corpus: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = [row["validation"]["bleu_13a"] for row in rows if "validation" in row]
    assert len(scores) == 3
    sources, targets = lines(corpus / "val.en"), lines(corpus / "val.de")
    outputs = manyheads.load(run).translate(sources, beam=1)
    assert BLEU().corpus_score(outputs, [targets]).score == pytest.approx(max(scores), abs=1e-3)


def test_decoding_is_that_of_the_runs_scores(run: Path, translator: Translator, corpus: Path) -> None:
    generation = GenerationConfig.from_pretrained(run)
    assert (generation.num_beams, generation.length_penalty) == (2, 1.0)
    assert translator.decoding == {"beam": 2, "alpha": 1.0}
    sources = lines(corpus / "test.en")
    assert translator.translate(sources) == translator.translate(sources, beam=2, alpha=1.0)


def test_given_words_occur_and_banned_ones_do_not(translator: Translator) -> None:
    text = "one red dog 3"
    free = translator.translate(text)
    assert translator.translate(text, prefix="zwei").startswith("zwei")
    forced = translator.translate(text, force=["Katze", "blau"])
    assert {"Katze", "blau"} <= {*forced.split()}
    assert "Katze" not in free
    assert "Katze" in translator.translate(text, force="Katze").split()
    banned = translator.translate(text, ban=("Hund", "rot"))
    assert not {"Hund", "rot"} & {*banned.split()}
    assert len(translator.target_tokenizer.encode(translator.translate(text, min_length=14)).ids) >= 14


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"force": ("世界",)}, "force has '世界': expected a text that the model's vocabulary can represent"),
        ({"ban": ("",)}, "ban has ''"),
        ({"no_repeat": -1}, "no_repeat is -1: expected 0"),
        ({"force": 3}, "force is 3: expected a string or a list"),
        ({"force": ("a", "b"), "ban": ("b",)}, "force and ban both have 'b'"),
        ({"temperature": 1.0, "force": "rot"}, "words can be forced in a search only"),
        ({"top_k": 3}, "top_k and top_p apply to random translations"),
        ({"alpha": 11.0}, "alpha is 11.0: expected 0 to 10"),
    ],
)
def test_unusable_options_are_refused(translator: Translator, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        translator.translate("one red dog 3", **options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"prefix": "rot Katze", "ban": "Katze"}, "prefix contains 'Katze', which is also banned"),
        ({"temperature": 1.0, "beam": 4}, "beam: no effect on random translations"),
        ({"temperature": 1.0, "alpha": 2.0}, "alpha: no effect on random translations"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    translator: Translator, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        translator.translate("one red dog 3", **options)


@pytest.mark.parametrize("options", [{"beem": 5}, {"wording": {"force": "rot"}}, {"beam_size": 9}])
def test_unknown_options_are_refused_by_name(translator: Translator, options: Any) -> None:
    for verb in (translator.translate, lambda text, **more: translator.nbest(text, 2, **more)):
        with pytest.raises(TypeError, match=f"has no option '{next(iter(options))}'.*beam"):
            verb("one red dog 3", **options)


def test_forced_words_widen_the_beam(translator: Translator) -> None:
    text = "one red dog 3"
    assert translator.nbest(text, 1, force="Katze") == translator.nbest(text, 1, force="Katze", beam=5)
    assert translator.nbest(text, 5, force="Katze")[0] == translator.nbest(text, 1, force="Katze")[0]
    given: tuple[Options, ...] = ({}, {"force": "a"}, {"force": "a", "beam": 2})
    assert [decoding_of(options, 1, {"beam": 1, "alpha": 0.6})[0] for options in given] == [1, 5, 2]


def test_random_translations_depend_on_the_seed_and_the_index_alone(translator: Translator) -> None:
    texts: Any = ["one red dog 3", "two blue cat 4 and one"]
    sampling: Any = {"temperature": 2.0}
    together = translator.nbest(texts, 3, **sampling, seed=7)
    alone = translator.nbest(texts[:1], 3, **sampling, seed=7)
    assert [t.text for t in together[0]] == [t.text for t in alone[0]]
    assert len({t.text for ranked in together for t in ranked}) > 2
    assert together != translator.nbest(texts, 3, **sampling, seed=8)
    cold = translator.translate(texts, temperature=0.0)
    assert cold == translator.translate(texts, beam=1)


def test_alignments_are_the_largest_weights_of_cross_attention(translator: Translator) -> None:
    text, target = "one red dog 3", "eins rot Hund 3"
    (pairs,) = translator.alignments([text], [target], layer=0)
    (record,) = translator.attend(text, target, axis="cross", layers=[0])["cross"]
    weights = record.weights[0].mean(0)[:-1, :-1]  # without the end tokens
    rows, columns = (
        np.cumsum([token.startswith("▁") for token in tokenizer.encode(side).tokens[:-1]]) - 1
        for tokenizer, side in ((translator.target_tokenizer, target), (translator.tokenizer, text))
    )
    expected = []
    for word in range(4):
        mean = weights[rows == word].mean(0)
        expected.append((int(np.argmax([mean[columns == source].sum() for source in range(4)])), word))
    assert pairs == expected
    assert translator.alignments([" "], [""]) == [[]]


def test_files_are_translated_and_their_names_are_not(
    run: Path, translator: Translator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("one red dog 3\n\ntwo blue cat 4\n", encoding="utf-8")
    assert cli.main(["translate", str(run), "--input", str(source), "--output", str(output), "--alignments"]) == 0
    assert capsys.readouterr().out == ""
    rows = [line.split("\t") for line in lines(output)]
    assert [row[0] for row in rows] == translator.translate(["one red dog 3", "", "two blue cat 4"])
    assert rows[0][1] == " ".join(f"{a}-{b}" for a, b in translator.alignments(["one red dog 3"])[0])
    assert cli.main(["translate", str(run), str(source)]) == 2
    assert f"{source} is a file, but a text is expected: to translate its lines, use --input" in capsys.readouterr().err
    assert cli.main(["translate", str(run), "--input", str(source), "--output", str(source)]) == 2
    assert "is the input: give another file" in capsys.readouterr().err
    source.write_text("one\n" + "dog " * 900 + "\n", encoding="utf-8")
    assert cli.main(["translate", str(run), "--input", str(source)]) == 2
    assert f"{source}:2: this text has" in capsys.readouterr().err


def test_the_average_has_the_mean_weights(run: Path, tmp_path: Path) -> None:
    kept = sorted((run / "kept").iterdir())[-2:]
    assert average(kept, tmp_path / "mean") in ("marian", "pegasus")
    first, second, mean = (load_file(folder / "model.safetensors") for folder in (*kept, tmp_path / "mean"))
    for name, tensor in mean.items():
        torch.testing.assert_close(tensor, (first[name] + second[name]) / 2)
    assert isinstance(manyheads.load(tmp_path / "mean").translate("one"), str)
    with pytest.raises(UserError, match="exists and is not empty"):
        average(kept, tmp_path / "mean")
    with pytest.raises(UserError, match="expected two or more models"):
        average(kept[:1], tmp_path / "one")


@pytest.mark.parametrize(
    ("name", "sizes", "cross"),
    [
        ("transformer/tiny", {**SMALL, "model.decoder_layers": 3}, "decoder.blocks.1.cross"),
        ("deep-att/rival", {"model.hidden": 12, "model.layers": 2, "model.decoder_layers": 2}, "decoder.cross"),
    ],
)
def test_unknown_words_are_copied_from_the_source(
    name: str, sizes: dict[str, Any], cross: str, corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {
        **sizes, "data": str(corpus), "preset": name, "model.width": 16, "tokenizer": "words", "joint": False,
        "model.tie": "none", "vocabulary": [20, 9], "training.steps": 40, "training.learning_rate": 1e-2,
        "threads": 1, "batch_tokens": 256, "beam": 1,
    }  # fmt: skip
    manyheads.train("translation", settings, out=tmp_path / "run")
    found: Any = manyheads.load(tmp_path / "run")
    text = "one red dog, seven"
    source = found.tokenizer.encode(text)
    ((hypothesis,),) = decode(found.compiled, [source.ids])
    inputs = torch.tensor([source.ids]), None, torch.tensor([[found.model.config.start, *hypothesis.tokens]])
    with torch.no_grad(), record(found.model) as maps:
        found.model(*inputs)
    best = maps[cross][0][0].mean(0)[:, 1:-1].argmax(1)  # without <bos> and <eos>
    words = ["one", "red", "dog", ",", "seven"]
    names = [found.target_tokenizer.id_to_token(token) for token in hypothesis.tokens]
    assert "<unk>" in names
    expected = [words[best[i]] if word == "<unk>" else word for i, word in enumerate(names)]
    assert found.translate(text, copy_unknown=True).replace(",", " ,").split() == " ".join(expected).split()
    assert found.translate(text).split() == [word for word in names if word != "<unk>"]
    assert cli.main(["translate", str(tmp_path / "run"), text, "--copy-unknown"]) == 0
    assert capsys.readouterr().out.strip() == found.translate(text, copy_unknown=True)


def test_copies_need_an_unknown_word(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="yield a vocabulary of only 18 ids"):
        tokenizer = train_unigram(["one red dog", "two blue cats"], 24)
    torch.manual_seed(0)
    sizes = {"source_vocab": 24, "target_vocab": 24, "pad": 23, "end": 0, "start": 23, "width": 8}
    directory.save(tmp_path / "run", build(preset("seq2seq-rnn/tiny", **sizes)), tokenizer)
    with pytest.raises(UserError, match="its vocabulary has no unknown word: leave out copy_unknown"):
        manyheads.load(tmp_path / "run").translate("one", copy_unknown=True)

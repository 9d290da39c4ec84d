"""Contract of the commands: output on stdout, error messages, and exit statuses."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manyheads import cli
from manyheads.core.config import as_dict
from manyheads.errors import UserError
from manyheads.models.presets import PRESETS
from manyheads.runs.overrides import apply, from_arguments, leaves
from manyheads.tasks.registry import RECIPES
from tests.support.refusals import refused

VERBS = ("recipes", "train", "evaluate", "compare", "translate", "summary", "export", "convert", "serve")


def test_help_answers_at_once() -> None:
    seconds = []  # of a processor, which others may keep busy
    for _ in range(3):
        before = os.times()
        done = subprocess.run([sys.executable, "-m", "manyheads", "--help"], capture_output=True, text=True, check=True)
        after = os.times()
        seconds.append(sum(after[2:4]) - sum(before[2:4]))
    assert min(seconds) < 0.5
    assert [verb for verb in VERBS if f"  {verb}" in done.stdout] == list(VERBS)


def help_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 0
    return capsys.readouterr().out


def test_help_is_a_verb_and_lists_groups(capsys: pytest.CaptureFixture[str]) -> None:
    text = help_of(capsys, "help")
    assert text == help_of(capsys, "--help")
    assert [f"\n{group}:\n" in text for group in cli.GROUPS] == [True] * len(cli.GROUPS)
    assert len(text.splitlines()) <= 40
    assert help_of(capsys, "help", "train") == help_of(capsys, "train", "--help")
    assert "unknown VERB 'trian': did you mean train?" in refused(capsys, "help", "trian")


@pytest.mark.parametrize("verb", cli.COMMANDS)
def test_help_has_an_example_that_parses(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = help_of(capsys, verb, "--help")
    assert text.startswith(f"usage: manyheads {verb} ")
    assert len(text.splitlines()) <= 40
    _, example = text.split("example:\n  manyheads ")
    options = cli._parse(shlex.split(example))
    assert options.name == verb


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: VERB"),
        (["trian", "translation"], "unknown VERB 'trian': did you mean train?"),
        (["train"], "expected a recipe (`manyheads recipes` lists them), or --resume RUN"),
        (["train", "translatoin"], "unknown recipe 'translatoin': did you mean translation?"),
        (["train", "translation/multi30k"], "data=DIR"),
        (["train", "translation/multi30k", "training.step=3"], "did you mean training.steps?"),
        (["train", "translation/multi30k", "training.lr=3"], "did you mean training.learning_rate?"),
        (
            ["train", "translation/multi30k", "training.steps=abc"],
            "expected an integer from 1 to 1000000000 or none, found 'abc'",
        ),
        (["train", "translation/multi30k", "steps"], "expected key=value"),
        (["train", "translation/multi30k", "--config", "absent.yaml"], "absent.yaml: failed to read"),
        (["train", "translation", "--precision", "bf61"], "unknown --precision 'bf61': did you mean bf16?"),
        (["train", "translation", "--max-minutes", "-1"], "expected a positive number, found '-1'"),
        (["train", "translation", "--resum"], "unknown option --resum: did you mean --resume?"),
        (["translate", "absent", "--beam", "0", "x"], "--beam: expected a whole number from 1 to 1024, found '0'"),
        (["translate", "absent", "--beam", "1000000000", "x"], "--beam: expected a whole number from 1 to 1024"),
        (["translate", "absent", "--nbest", "1000000", "x"], "--nbest: expected a whole number from 1 to 1024"),
        (
            ["translate", "absent", "--nbest", "5", "--beam", "4", "x"],
            "--nbest 5 exceeds the beam: expected --beam 5 or more, found 4",
        ),
        (["translate", "absent", "--alpha", "1e308", "x"], "--alpha: expected a number from 0 to 10, found '1e308'"),
        (["translate", "absent", "--alpha", "-1", "x"], "--alpha: expected a number from 0 to 10, found '-1'"),
        (["translate", "absent", "--alpha", "nan", "x"], "--alpha: expected a number from 0 to 10, found 'nan'"),
        (["fill", "absent", "--top", "1000000", "x"], "--top: expected a whole number from 1 to 1000"),
        (["classify", "absent", "--top", "9" * 30, "x"], "--top: expected a whole number from 1 to 1000000"),
        (["generate", "absent", "--max-tokens", "1000000"], "--max-tokens: expected a whole number from 1 to 100000"),
        (["generate", "absent", "--top-k", "9" * 30], "--top-k: expected a whole number from 1 to 1000000000"),
        (["train", "translation", "--max-minutes", "inf"], "expected a positive number, found 'inf'"),
        (["translate", "absent", "x"], "absent"),
        (["translate", "absent", "--score-target", "nowhere.de"], "nowhere.de: No such file"),
        (["translate", "absent", "--score-target", "nowhere.de", "--nbest", "2"], "complete texts: leave out --nbest"),
        (["translate", "absent", "--score-target", "nowhere.de", "--truncate"], "complete texts: leave out --truncate"),
        (
            ["generate", "absent", "--seed", "abc"],
            f"--seed: expected a whole number from 0 to {2**63 - 1}, found 'abc'",
        ),
        (["answer", "absent", "--null-threshold", "abc"], "--null-threshold: expected a finite number, found 'abc'"),
        (["evaluate", "absent"], "absent"),
        (["evaluate", "absent", "more"], "unexpected 'more'"),
        (["compare", "absent"], "required: SECOND"),
        (["summary", "transformer/bse"], "did you mean transformer/base?"),
        (["export", "absent", "out"], "required: --format"),
        (["export", "absent", "out", "--format", "onx"], "unknown --format 'onx'"),
        (["convert", "absent.pt", "out"], "absent.pt: no such file or directory: expected a model directory, "),
    ],
)
def test_mistakes_take_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, *arguments)
    assert list(tmp_path.iterdir()) == []


def test_the_traceback_is_for_debug(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--debug", "summary", "absent"], ["summary", "absent", "--debug"]):
        assert cli.main(arguments) == 2
        assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(28, "No space left on device", "/full/disk"), 2, "/full/disk: No space left on device"),
        (FileNotFoundError("data/x.txt: no such file"), 2, "data/x.txt: no such file"),
        (UserError("two\nlines"), 2, "two lines"),
    ],
)
def test_exit_statuses(
    error: BaseException, status: int, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr("manyheads.cli.recipes._recipes", fail)
    assert cli.main(["recipes"]) == status
    assert capsys.readouterr().err == f"manyheads: {message}\n"


@pytest.mark.parametrize("error", [TypeError("a bug"), ValueError("zip() argument 2 is longer"), OSError("a bug")])
def test_an_internal_error_keeps_its_traceback(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr("manyheads.cli.recipes._recipes", fail)
    assert cli.main(["recipes"]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("Traceback (most recent call last):")
    expected = f"manyheads: this is a bug in manyheads, please report it: {type(error).__name__}: {error}"
    assert printed.splitlines()[-1] == expected


def test_a_closed_pipe_is_no_error() -> None:
    talk = "from manyheads import cli; from manyheads.cli import recipes as verb; "
    talk += "verb._recipes = lambda _: print('x' * 10**6); "
    code = f"{talk}raise SystemExit(cli.main(['recipes']))"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert cli.main(arguments) == 0
    return capsys.readouterr().out.splitlines()


def test_recipes_list_every_family_and_every_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads("\n".join(printed(capsys, "recipes", "--json")))
    assert [r["recipe"] for r in found] == list(RECIPES)
    assert all(r["command"].startswith(f"manyheads train {r['recipe']}") and r["paper"] for r in found)
    assert all(list(leaves(r["settings"])) and all(r["meanings"].values()) for r in found)
    families = {line.split()[0] for line in printed(capsys, "recipes") if line.startswith("  ")}
    assert families == {name.partition("/")[0] for name in RECIPES}
    every = printed(capsys, "recipes", "--all")
    assert {line.split()[0] for line in every if re.match("  [a-z]", line)} == set(RECIPES)
    assert printed(capsys, "recipes", "bert")[1].startswith("  bert/pretraining ")
    assert "  translation/multi30k " in "\n".join(printed(capsys, "recipes", "translation"))


@pytest.mark.parametrize(
    "arguments", [[], ["bert"], ["imdb"], ["mnist"], ["cifar10"], *([name] for name in RECIPES)], ids=str
)
def test_recipes_fit_a_screen(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    fits_a_screen(printed(capsys, "recipes", *arguments))


@pytest.mark.parametrize(
    "arguments",
    [
        ["summary"],
        ["summary", "transformer/base"],
        ["summary", "resnet/50-se"],
        ["plan", "translation/wmt14-base", "--devices", "8", "--memory", "80", "--tflops", "99", "--bandwidth", "2e3"],
    ],
    ids=" ".join,
)
def test_the_default_output_fits_a_screen(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    fits_a_screen(printed(capsys, *arguments))


def fits_a_screen(lines: list[str]) -> None:
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("name", RECIPES)
def test_printed_settings_can_be_pasted(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = RECIPES[name].config
    settings = json.loads(json.dumps(as_dict(config)))
    for option, expected in (((), 1), (("--all",), len(list(leaves(settings))))):
        text = "\n".join(printed(capsys, "recipes", name, *option))
        assert f"manyheads train {name}" in text
        text, _, results = text.partition("best measured results")
        given = [shlex.split(setting)[0] for setting in re.findall(r"^  ('[^']*'|[a-z_.]+=\S+)", text, re.MULTILINE)]
        assert len(given) >= expected
        assert json.loads(json.dumps(as_dict(apply(config, from_arguments(given))))) == settings
    lines = results.partition("\n\n")[0].splitlines()[1:]
    words = [re.sub(r" ?\(\d.*", "", line[30:]).replace("default settings", "") for line in lines]
    options = cli._parse(["train", name, *shlex.split(" ".join(words))])
    apply(config, from_arguments(options.rest))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("multi30k", "unknown recipe 'multi30k': did you mean translation/multi30k?"),
        ("vit", "unknown recipe 'vit': did you mean mnist/vit or cifar10/vit?"),
        ("mrcp", "unknown recipe 'mrcp': did you mean mrpc?"),
        ("cifra10", "unknown recipe 'cifra10': did you mean cifar10?"),
        ("nonsense", "unknown recipe 'nonsense': `manyheads recipes` lists them"),
    ],
)
def test_a_wrong_recipe_name_takes_one_line(name: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "recipes", name) == refused(capsys, "train", name) == f"manyheads: {message}\n"


def test_a_group_of_recipes_lists_its_members(capsys: pytest.CaptureFixture[str]) -> None:
    members = "bert/pretraining, bert/roberta, bert/imdb, bert/imdb-1000"
    assert f"'bert' is a group of recipes: choose {members}" in refused(capsys, "train", "bert")


def test_a_preset_has_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["summary", "transformer/base", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"]["total"] == 63_082_496
    assert found["parameters"]["non_embedding"] == 44_138_496
    assert found["flops"]["forward"] > 0


def test_summary_without_a_model_lists_the_presets(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "summary", "--all")
    assert [line.split()[0] for line in lines] == list(PRESETS)
    assert any(line.split() == ["vit/ti16", "Dosovitskiy", "2020"] for line in lines)
    assert cli.main(["summary", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0] == {"name": "transformer/tiny", "paper": "Vaswani 2017"}
    families = {line.split()[0] for line in printed(capsys, "summary") if re.match("  [a-z]", line)}
    assert families == {name.partition("/")[0] for name in PRESETS}
    refusal = refused(capsys, "summary", "vit/ti61")
    assert "did you mean vit/ti16?" in refusal
    assert len(refusal) < 200


def test_the_formats_equal_the_directorys() -> None:
    from manyheads.export import FORMATS

    export = cli._parsers()[1]["export"]
    (action,) = (a for a in export._actions if a.dest == "format")
    assert tuple(action.choices or ()) == FORMATS


def test_an_interrupt_during_imports_is_one_line() -> None:
    code = """
import sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "manyheads.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from manyheads.__main__ import main
raise SystemExit(main())
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "manyheads: interrupted\n")


def test_cli_limits_equal_the_predictors() -> None:
    from manyheads.cli import generate
    from manyheads.tasks.answering import predictor as answering
    from manyheads.tasks.language import predictor as language
    from manyheads.tasks.masked_words import predictor as masked_words

    assert generate.MAX_NEW_TOKENS == language.MAX_NEW_TOKENS
    assert answering.MAX_ANSWERS == answering.MAX_ANSWER_TOKENS == masked_words.MAX_WORDS == 1000


@pytest.mark.parametrize("arguments", [("translate", "m", "a", "--score-target"), ("answer", "m", "--question", "q")])
def test_a_pipe_is_refused_without_blocking(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    last = [str(pipe)] if arguments[0] == "translate" else ["--context", f"@{pipe}"]
    assert f"{pipe}: expected a file, found a pipe or device" in refused(capsys, *arguments, *last)


class Writer:
    """Stub of a language model that generates two pieces."""

    verbs = ("generate",)
    reads = "texts"

    def generate(self) -> None: ...

    def continuations(self, texts: list[str], *, stream: Callable[[int, str], None], **_: Any) -> list[str]:
        for piece in ("abc", "de"):
            stream(0, piece)
        return [f"{text} abcde" for text in texts]


def test_a_long_text_reports_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("manyheads.tasks.loading.load", lambda name, **_: Writer())
    assert cli.main(["generate", "m", "a"]) == 0
    assert capsys.readouterr() == ("a abcde\n", "")
    monkeypatch.setattr("manyheads.cli.generate.TELLING", -1.0)
    assert cli.main(["generate", "m", "a"]) == 0
    told = "manyheads: 3 characters so far\nmanyheads: 5 characters so far\n"
    assert capsys.readouterr() == ("a abcde\n", told)


def test_file_content_cannot_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "x\x1b[2J\n" + "y" * 10_000}))
    assert cli.main(["summary", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "\x1b" not in told
    assert told.count("\n") == 1
    assert len(told) < 4100


def test_arguments_after_two_dashes_are_text() -> None:
    for words in (["--top", "2", "MODEL"], ["MODEL", "--top", "2"], ["MODEL"]):
        assert cli._parse(["classify", *words, "--", "- a list item", "--top"]).rest == ["- a list item", "--top"]

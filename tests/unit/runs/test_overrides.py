"""Setting overrides: correct field and type, and errors that suggest a fix."""

import json
import os
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given as given_by
from hypothesis.strategies import lists, text

from manyheads.core.config import Config as Base
from manyheads.core.config import Range, as_dict
from manyheads.errors import UserError
from manyheads.runs.options import Run
from manyheads.runs.overrides import Setting, apply, from_arguments, from_file, from_mapping, leaves


@dataclass(frozen=True)
class Training:
    steps: int | None = 100
    rate: float = 0.5
    betas: tuple[float, float] = (0.9, 0.98)
    optimizer: Literal["adam", "adamw"] = "adam"

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps <= 0:
            raise UserError(f"steps must be positive, got {self.steps}")
        if self.optimizer == "adam" and self.rate > 10:
            raise UserError("adam needs a rate below 10")


@dataclass(frozen=True)
class Config:
    source: str = "en"
    data: str | None = None
    shared: bool = True
    sizes: tuple[int, ...] = (1, 2)
    model: dict[str, Any] = field(default_factory=dict)
    training: Training = Training()


def given(*arguments: str) -> Config:
    return apply(Config(), from_arguments(arguments))


@dataclass(frozen=True)
class Weights(Base):
    weights: Literal["balanced"] | dict[str, Annotated[float, Range(0, 9)]] | None = None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["weights=balanced"], "balanced"),
        (["weights.dog=2", "weights.a.b c=0.5"], {"dog": 2, "a.b c": 0.5}),
        (["weights=balanced", "weights.dog=1e-1"], {"dog": 0.1}),
        (['weights={dog: 2, "7": 1}'], {"dog": 2, "7": 1}),
        (["weights.dog=2", "weights=none"], None),
    ],
)
def test_a_setting_is_a_name_or_has_numbers_by_name(arguments: list[str], expected: object, tmp_path: Path) -> None:
    config = apply(Weights(), from_arguments(arguments))
    assert config.weights == expected
    assert apply(Weights(), from_mapping({"weights": expected})) == config
    (tmp_path / "a.yaml").write_text(json.dumps({"weights": expected}))
    assert apply(Weights(), from_file(tmp_path / "a.yaml")) == config
    assert apply(Weights(), [Setting("weights", as_dict(config)["weights"])]) == config, "as a resumed run reads it"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("weights.dog=much", "each value a number from 0 to 9, but 'dog' is 'much'"),
        ("weights.dog=10", "weights is .*: expected a mapping with each value a number from 0 to 9, but 'dog' is 10"),
        ("weights=balancd", "did you mean balanced"),
        ("wights.dog=2", r"wights\.dog: unknown setting; did you mean weights"),
    ],
)
def test_other_weights_are_refused(argument: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply(Weights(), from_arguments([argument]))


@dataclass(frozen=True)
class TwoRates:
    training: Training = Training()
    other: Training = Training()


def test_a_bare_key_needs_a_unique_name() -> None:
    assert given("steps=7").training.steps == 7
    with pytest.raises(ValueError, match=r"rate: several settings .* choose training\.rate or other\.rate"):
        apply(TwoRates(), from_arguments(["rate=3"]))


@pytest.mark.parametrize(
    ("argument", "key", "expected"),
    [
        ("training.steps=7", "training.steps", 7),
        ("training.steps=none", "training.steps", None),
        ("training.rate=1e-3", "training.rate", 0.001),
        ("training.rate=2", "training.rate", 2.0),
        ("training.betas=0.9,0.997", "training.betas", (0.9, 0.997)),
        ("training.betas=[0.5, 0.6]", "training.betas", (0.5, 0.6)),
        ("training.optimizer=adamw", "training.optimizer", "adamw"),
        ("source=no", "source", "no"),  # Norwegian, not false
        ("data=/a=b", "data", "/a=b"),
        ("data=null", "data", None),
        ("shared=off", "shared", False),
        ("sizes=4,5,6", "sizes", (4, 5, 6)),
        ("model.width=64", "model", {"width": 64}),
        ("model={norm: pre, dropout: 1e-1}", "model", {"norm": "pre", "dropout": 0.1}),
    ],
)
def test_values_are_converted_by_field_type(tmp_path: Path, argument: str, key: str, expected: object) -> None:
    written = tmp_path / "run.yaml"
    name, _, value = argument.partition("=")
    written.write_text(f"{name}: {value}\n")
    for config in (
        given(argument),
        apply(Config(), from_file(written)),
        apply(Config(), from_mapping({key: expected})),
    ):
        found: Any = config
        for part in key.split("."):
            found = getattr(found, part)
        assert found == expected
        assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("training.steps=abc", "training.steps: expected an integer or none, found 'abc'"),
        ("training.steps=1.5", "training.steps: expected an integer or none, found '1.5'"),
        ("training.rate=fast", "training.rate: expected a number, found 'fast'"),
        ("shared=maybe", "shared: expected true or false, found 'maybe'"),
        ("training.betas=0.9", "training.betas: expected a list of 2 items, found '0.9'"),
        ("training.optimizer=adamv", "expected one of adam, adamw (did you mean adam?), found 'adamv'"),
        ("training.step=3", "training.step: unknown setting; did you mean training.steps?"),
        ("steps=-3", "training.steps: steps must be positive"),
        ("trainning.rate=3", "did you mean training.rate?"),
        ("source.x=3", "source.x: unknown setting"),
        ("training=3", "training: is a group of settings; set one of training.steps"),
        ("training.steps=0", "training.steps: steps must be positive, got 0"),
        ("noequals", "'noequals' is not a setting; expected key=value"),
    ],
)
def test_mistakes_are_reported_by_name(argument: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        given(argument)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_config_checks_see_all_settings_at_once() -> None:
    assert given("training.rate=20", "training.optimizer=adamw").training.rate == 20
    with pytest.raises(ValueError, match="training.rate: adam needs a rate below 10"):
        given("training.rate=20")


def test_settings_from_arguments_override_files(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("# a comment\ntraining:\n  steps: 5\n  betas: [0.1, 0.2]\nsource: 'de'\nmodel: {width: 8}\n")
    config = apply(Config(), from_file(path) + from_arguments(["training.steps=6"]))
    assert config == Config("de", model={"width": 8}, training=Training(steps=6, betas=(0.1, 0.2)))
    path.write_text("")
    assert apply(Config(), from_file(path)) == Config()


def test_an_oversized_file_and_a_pipe_are_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("a b " * 50_000)
    with pytest.raises(ValueError, match="corpus.txt: expected at most 100,000 bytes of settings, found 200,000"):
        from_file(path)
    os.mkfifo(tmp_path / "pipe")
    for place, what in ((tmp_path / "pipe", "pipe or device"), (tmp_path, "directory")):
        with pytest.raises(ValueError, match=f"expected a file, found a {what}"):
            from_file(place)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source: de\ntraining:\n  steps: many\n", ":3: training.steps: expected an integer or none, found 'many'"),
        ("source: de\nsauce: fr\n", ":2: sauce: unknown setting; did you mean source?"),
        ("source: de\nsource: fr\n", ":2: found source twice"),
        ("- a\n", ":1: expected settings"),
        ("a: [1\nb: 2\n", ": invalid YAML"),
        ("a: &a [1, 1]\nb: [*a, *a]\n", ":2: aliases (*a) are not supported"),
        ("training: {steps: [1, 2]}\n", ":1: training.steps: expected an integer or none, found ['1', '2']"),
    ],
)
def test_mistakes_in_a_file_are_reported_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:
        apply(Config(), from_file(path))
    assert f"{path}{message}" in str(caught.value) or (str(path) in str(caught.value) and message in str(caught.value))


def test_missing_or_binary_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="absent.yaml: failed to read"):
        from_file(tmp_path / "absent.yaml")
    (tmp_path / "b.yaml").write_bytes(b"a: \xff\n")
    with pytest.raises(ValueError, match="not UTF-8"):
        from_file(tmp_path / "b.yaml")


def test_the_resume_command_restores_the_config() -> None:
    config = given("training.betas=0.5,0.6", "training.steps=none", "shared=no", "data=a b", "model.width=8", "sizes=3",
                   "model.depths=1,1", "model.widths=[8]", "model.names=[]")  # fmt: skip
    assert config.model == {"width": 8, "depths": [1, 1], "widths": [8], "names": []}
    run = Run("r", Path("runs/r"), given=dict(leaves(as_dict(config))), precision="bf16")
    words = shlex.split(run.command)
    assert words[:3] == ["manyheads", "train", "r"]
    assert run.resume_command == "manyheads train --resume runs/r"
    assert given(*words[3 : words.index("--out")]) == config


def test_an_argument_without_a_value_is_reported() -> None:
    with pytest.raises(ValueError, match=r"'data= ' has no value .* write data=null"):
        from_arguments(["data= "])


@pytest.mark.parametrize(
    "value",
    [
        "{a: &a [1, 1], b: [*a, *a]}", "&a [*a]", "[" * 5000, "2024-13-45", "{a: !!timestamp 3}", "{a: !!bool x}",
        "{a: !!int x}", "{a: " + "9" * 5000 + "}", "!!python/name:os.system", "{1: 2}", "{a: " + "1, " * 50_000 + "}",
    ],
)  # fmt: skip
def test_values_that_break_yaml_are_reported_with_their_key(value: str) -> None:
    with pytest.raises(ValueError, match="^model: (failed to parse the value|expected)"):
        apply(Free(), from_arguments([f"model={value}"]))


@dataclass(frozen=True)
class Free:
    model: dict[str, Any] = field(default_factory=dict)


def test_endless_brackets_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("{" * 20_000)
    with pytest.raises(ValueError, match=r"a\.yaml:1: too many levels of nesting"):
        from_file(tmp_path / "a.yaml")
    (tmp_path / "b.yaml").write_text("\n".join(f"{' ' * depth}a:" for depth in range(60)))
    with pytest.raises(ValueError, match=r"b\.yaml:51: too many levels of nesting"):
        from_file(tmp_path / "b.yaml")


@dataclass(frozen=True)
class Named:
    names: tuple[str, ...] = ()
    grid: tuple[tuple[int, int], ...] = ()


@pytest.mark.parametrize(
    ("text", "names"),
    [("bad,good (really)", ("bad", "good (really)")), ("(a) x,(b)", ("(a) x", "(b)")), ("[a, 'b']", ("a", "b")),
     ("(a)", ("a",)), ("'s,b", ("'s", "b")), ('["a, b","c"]', ("a, b", "c"))],
)  # fmt: skip
def test_brackets_and_quotes_inside_words_are_kept(text: str, names: tuple[str, ...]) -> None:
    assert apply(Named(), from_arguments([f"names={text}"])).names == names


@given_by(lists(text(alphabet="ab [](),'\"é\\\n{}:#", max_size=4), max_size=4))
def test_resume_commands_round_trip_any_words(names: list[str]) -> None:
    run = Run("r", Path("runs/r"), given={"names": names, "grid": [[1, 2], [3, 4]]})
    words = shlex.split(run.command)
    again = apply(Named(), from_arguments(words[3 : words.index("--out")]))
    assert again == Named(tuple(names), ((1, 2), (3, 4)))


def test_a_part_gets_the_remaining_minutes() -> None:
    whole = Run("r", Path("runs/r"), max_minutes=30)
    for since, left in ((0, 30), (20, 10), (40, 0)):
        part = whole.part("base", time.monotonic() - 60 * since)
        assert part.max_minutes == pytest.approx(left, abs=0.1)
        assert (part.out, part.resume_command) == (Path("runs/r/base"), f"{whole.command} --resume")
    assert Run("r", Path("runs/r")).part("base", time.monotonic()).max_minutes is None


def test_processes_agree_on_the_remaining_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """This one began 20 minutes ago, and rank 0 says that it were 12."""
    monkeypatch.setattr(
        "manyheads.runs.options.distributed_context", lambda: SimpleNamespace(broadcast=lambda _: 12.0 * 60)
    )
    part = Run("r", Path("runs/r"), max_minutes=30).part("base", time.monotonic() - 60 * 20)
    assert part.max_minutes == pytest.approx(18)

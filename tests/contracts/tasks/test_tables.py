"""Consistency of the tables of commands, data kinds and heads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest

from manyheads import service, tasks
from manyheads.data.sources.recorded import KINDS
from manyheads.data.sources.source import Source
from manyheads.interop.bert import _BERT, _DISTILBERT, _ROBERTA
from manyheads.models.bert import Head
from manyheads.runs.run import task_of
from manyheads.runs.task import Task
from manyheads.service.app import ENDPOINTS
from manyheads.service.registry import WARM_UP
from manyheads.tasks.registry import FAMILIES, RECIPES, variants
from manyheads.tasks.table import PREDICTORS, TASKS
from manyheads.tasks.verbs import COMMANDS, SERVED
from tests.stress.fuzzing.targets.runs import rows_of

OPENAI = {
    "generate": "/v1/completions",
    "embed": "/v1/embeddings",
    "rerank": "/v1/rerank",
}  # paths of verbs of other services
METHODS = {"evaluate": "outcome"}  # all other verbs are methods of the same name


def predictor_classes() -> list[type[Any]]:
    places = [place.split(":") for place in dict.fromkeys(row.predictor for row in PREDICTORS)]
    return [getattr(import_module(f"manyheads.tasks.{module}"), name) for module, name in places]


@pytest.mark.parametrize("predictor", predictor_classes(), ids=lambda kind: kind.__name__)
def test_each_declared_verb_has_a_method(predictor: type[Any]) -> None:
    assert predictor.verbs
    for verb in predictor.verbs:
        assert verb in {*COMMANDS, *SERVED}, f"{verb} is in no table: add it to manyheads/tasks/verbs.py"
        assert callable(getattr(predictor, METHODS.get(verb, verb)))


def test_each_task_is_described_once() -> None:
    assert {task.name for task in TASKS} == {file.parent.name for file in Path(tasks.__path__[0]).glob("*/recipes.py")}
    for families in FAMILIES.values():
        for family in families:
            assert family in RECIPES or variants(family), f"{family} is no recipe and has no variants"


def test_each_task_class_defines_the_methods_of_a_run() -> None:
    for kind in {task_of(recipe) for recipe in RECIPES.values()}:
        if isinstance(kind, type):
            names = ("planned_model", "plan", "data", "build", "example")
            lacking = [name for name in names if getattr(kind, name) is getattr(Task, name)]
            assert not lacking, f"{kind.__name__} lacks {', '.join(lacking)}"


def test_each_served_verb_has_a_route_a_warm_up_and_a_form_on_the_page() -> None:
    page = (Path(service.__path__[0]) / "assets" / "verbs.js").read_text(encoding="utf-8")
    forms = set(re.findall(r"^  (\w+): \{", page[page.index("export const VERBS") :], re.M))
    paths = {endpoint.path for endpoint in ENDPOINTS}
    for verb in SERVED:
        assert OPENAI.get(verb, f"/{verb}") in paths, f"{verb} has no route: add it to manyheads/service/app.py"
        assert verb in WARM_UP, f"{verb} is not warmed up: add it to WARM_UP in manyheads/service/registry.py"
        assert verb in forms, f"{verb} has no form: add it to VERBS in manyheads/service/assets/verbs.js"


def test_each_verb_method_is_declared() -> None:
    for predictor in predictor_classes():
        methods = {verb for verb in (*COMMANDS, *SERVED) if hasattr(predictor, METHODS.get(verb, verb))}
        assert methods == set(predictor.verbs), predictor.__name__


def sources(kind: type[Any] = Source) -> Iterator[type[Any]]:
    for source in kind.__subclasses__():
        yield from [source] if source.__module__.startswith("manyheads.") and "kind" in vars(source) else []
        yield from sources(source)


def test_each_source_of_data_is_in_the_table_of_kinds() -> None:
    for source in sources():
        assert KINDS.get(source.kind) is source, f"{source.__name__}: add it to KINDS in data/sources/recorded.py"


def test_fuzzing_an_unknown_data_kind_names_the_table() -> None:
    assert all(rows_of(kind) for kind in KINDS)
    with pytest.raises(AssertionError, match=r"'sounds': add rows to ROWS_OF in tests/stress/fuzzing/targets/runs\.py"):
        rows_of("sounds")


def test_each_head_of_bert_has_a_predictor() -> None:
    predicted = {head for row in PREDICTORS if "bert" in row.families for head in row.heads}
    assert predicted == set(get_args(Head)), "add the head to the predictors of a task, in its recipes.py"


@pytest.mark.parametrize("names", [_BERT, _ROBERTA, _DISTILBERT], ids=lambda names: names.prefix)
def test_two_heads_never_share_an_architecture(names: Any) -> None:
    assert set(names.architectures) <= set(get_args(Head))
    taken = names.architectures["sequence"]
    with pytest.raises(AssertionError, match=f"two heads have the same architecture.*{taken}"):
        replace(names, architectures={**names.architectures, "regression": taken})

"""Table of presets, checks of a model's size, and weights loaded with another head."""

import subprocess
import sys
from dataclasses import fields
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
import torch

from manyheads.core import runtime
from manyheads.core.config import Below, Config, Range
from manyheads.models.adapt import adapt
from manyheads.models.gpt import GPT
from manyheads.models.presets import FAMILIES, PRESETS, build, full_name, preset, preset_for_data
from manyheads.models.resnet import ResNet
from manyheads.training.config import TrainingConfig


def test_names_are_available_without_torch() -> None:
    code = (
        "import sys; from manyheads.models.presets import PRESETS, full_name;"
        "print(len(PRESETS), full_name('tiny', 'bert'), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(PRESETS)), "bert/tiny", "False"]


def test_short_names_belong_to_one_family_and_full_names_to_any() -> None:
    assert full_name("tiny", "transformer") == full_name("transformer/tiny", "transformer") == "transformer/tiny"
    assert full_name("baby", "gpt", "gpt2") == "gpt2/baby"
    assert full_name("universal/tiny") == full_name("universal/tiny", "transformer", "universal") == "universal/tiny"
    assert full_name("universal/tiny", "gpt2", "universal-sequence") == "universal-sequence/tiny"
    assert full_name("tfidf", "text-classifier", "tfidf") == "tfidf"
    for name, families, message in (
        ("vit/ti61", (), "did you mean vit/ti16"),
        ("tinny", ("transformer",), "did you mean transformer/tiny"),
        ("?", (), "expected a name such as transformer/tiny; `manyheads summary` lists all"),
    ):
        with pytest.raises(ValueError, match="unknown preset .*" + message.replace("?", r"\?")) as caught:
            full_name(name, *families)
        assert len(str(caught.value)) < 150
    with pytest.raises(ValueError, match="unknown settings depth: expected some of .*layers"):
        preset("gpt2/nano", depth=3)
    config = preset_for_data("gpt2/nano", (), {"layers": 2}, {"vocab": 70})
    assert (config.layers, config.vocab) == (2, 70)
    with pytest.raises(ValueError, match="cannot set vocab: the data and the task determine"):
        preset_for_data("gpt2/nano", (), {"vocab": 65}, {"vocab": 70})


def test_position_tables_count_as_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no weights, and may be larger than all weights."""
    monkeypatch.setattr(runtime, "physical_memory", lambda: 50_000_000)
    sizes = {"source_vocab": 50, "target_vocab": 50, "width": 128}
    build(preset("transformer/tiny", **sizes))
    with pytest.raises(ValueError, match=r"and 1\d,[\d,]* other numbers, such as position tables"):
        build(preset("transformer/tiny", **sizes, max_positions=100_000))


def _numbers(hint: Any) -> list[Any]:
    """The numbers that a field may hold, as they are stated."""
    if get_origin(hint) is Annotated:
        kind, *limits = get_args(hint)
        return [limits] if kind in (int, float) else []
    return [[]] if hint in (int, float) else [number for part in get_args(hint) for number in _numbers(part)]


def _configurations(kind: type[Config]) -> set[type[Config]]:
    kinds = {kind}
    for subclass in kind.__subclasses__():
        kinds |= _configurations(subclass)
    return kinds


def test_every_number_of_a_configuration_has_a_range() -> None:
    for family in FAMILIES.values():
        family.configuration()
    kinds = {kind for kind in _configurations(Config) if kind.__module__.startswith("manyheads.models")}
    for kind in {*kinds, TrainingConfig}:
        hints = get_type_hints(kind, include_extras=True)
        for field in fields(kind):
            for limits in _numbers(hints[field.name]):
                assert any(isinstance(limit, (Range, Below)) for limit in limits), f"{kind.__name__}.{field.name}"
    # the bases of the recurrence, of encoder-decoders, of deep translators and of convolutional networks
    assert len(kinds) == len({family.config for family in FAMILIES.values()}) + 4


def test_other_weights_are_kept() -> None:
    torch.manual_seed(1)
    model = ResNet(preset("resnet/20-small", labels=("a", "b"))).eval()
    same, new = adapt(model, image_size=16)
    assert new == []
    assert all(torch.equal(same.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert not same.training
    other, new = adapt(model, labels=("c", "d"))  # as many, but others
    assert new == ["classifier.weight", "classifier.bias"]
    assert not torch.equal(other.state_dict()["classifier.weight"], model.state_dict()["classifier.weight"])
    with pytest.raises(ValueError, match="widths would change the shapes of"):
        adapt(model, widths=(16, 32, 128))


def test_all_weights_of_a_network_are_read() -> None:
    model = GPT(preset("gpt2/nano", width=8, heads=2, layers=2, bias=True))
    with pytest.raises(ValueError, match="bias would change the shapes of decoder"):
        adapt(model, bias=False)
    with pytest.raises(ValueError, match="layers would change the shapes of decoder"):
        adapt(model, layers=1)


@pytest.mark.parametrize("name", ["text-classifier/corrected", "sequence-baseline/lstm", "tfidf"])
def test_another_label_order_permutes_the_output(name: str) -> None:
    model = build(preset(name, vocab=30, labels=("negative", "positive")))
    same, new = adapt(model, labels=("negative", "positive"))
    assert (new, torch.equal(same.output.weight, model.output.weight)) == ([], True)
    for labels in (("positive", "negative"), ("a", "b", "c")):
        other, new = adapt(model, labels=labels)
        assert {"output.weight", "output.bias"} == {*new}
        assert not other.output.weight.equal(model.output.weight)


def test_a_preset_of_another_task_is_reported() -> None:
    with pytest.raises(ValueError, match="the preset 'bert/tiny' does not fit this task: expected one of gnmt, gpt$"):
        full_name("bert/tiny", "gnmt", "gpt")

from benchmarks import recording
from manyheads.core.attention import Attention
from manyheads.models.bert import Bert
from manyheads.models.presets import preset


def test_explicit_mode_covers_every_attention_and_ends_with_the_block() -> None:
    model = Bert(preset("bert/tiny", vocab=50))
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    with recording.explicit(model):
        assert [attention.explicit for attention in attentions] == [True, True]
    assert [attention.explicit for attention in attentions] == [None, None]


def test_every_cost_is_a_ratio_of_measured_times() -> None:
    found = recording.measure(repeats=2, threads=None, name="tiny")
    assert set(found["seconds"]) == {"nothing", "one head", "explicit", "everything", "everything and head outputs"}
    assert all(0 < ratio["min"] <= ratio["median"] <= ratio["max"] for ratio in found["cost"].values())

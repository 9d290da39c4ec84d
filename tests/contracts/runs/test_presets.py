"""Model presets of recipes."""

from manyheads.tasks.train import train


def test_model_settings_of_a_recipe_belong_to_its_preset() -> None:
    planned = [
        train("text-classification", {**settings, "items": 500, "vocabulary": 1000}, dry_run=True)["model"]
        for settings in ({}, {"preset": "text-classifier/textbook"}, {"preset": "sequence-baseline/lstm"})
    ]
    assert (planned[0]["width"], planned[0]["dropout"]) == (64, 0.2)
    assert planned[1]["width"] == 32
    assert planned[2]["kind"] == "lstm"

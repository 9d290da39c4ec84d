"""Options of a run: settings without effect are refused."""

from pathlib import Path

import pytest

from manyheads.errors import UserError
from manyheads.runs.options import Run


def test_a_setting_without_effect_is_refused_unless_it_repeats_the_recipe() -> None:
    run = Run("translation", Path("out"), given={"size": 30000, "locale": "fr"}, overrides={"locale": "fr"})
    with pytest.raises(UserError, match="size, locale: no effect"):
        run.refuse(("size", "locale"), "no effect")
    with pytest.raises(UserError, match="^locale: no effect"):
        run.refuse(("size", "locale"), "no effect", changed_only=True)
    run.refuse(("size",), "no effect", changed_only=True)

"""Built-in corpora shared by several runs."""

from collections.abc import Iterator
from functools import cache

import pytest

from manyheads.data.embedded import phrases, tags

PAIRS, TAGGED = cache(phrases.cldr_pairs), cache(tags.cldr_tagged)


@pytest.fixture(autouse=True, scope="module")
def embedded_corpora_made_once() -> Iterator[None]:
    """A corpus of one seed is always the same (tests/system/data/embedded), and takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phrases, "cldr_pairs", PAIRS)
        patch.setattr(tags, "cldr_tagged", TAGGED)
        yield

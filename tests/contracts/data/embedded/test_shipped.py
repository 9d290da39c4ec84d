"""Shipped corpora and names, byte for byte equal to the generated ones."""

import lzma

import pytest
from babel import Locale

from lab import embedded_corpora
from manyheads.data.embedded import shipped
from manyheads.data.embedded.phrases import cldr_pairs
from manyheads.data.embedded.tags import cldr_tagged
from manyheads.service.libretranslate import _language_name


def content(name: str) -> str:
    return lzma.decompress((shipped.FOLDER / f"{name}{shipped.SUFFIX}").read_bytes()).decode()


@pytest.mark.slow
def test_shipped_corpora_equal_generated_ones() -> None:
    generated = embedded_corpora.corpora()
    assert sorted(generated) == shipped.names()
    for name, corpus in generated.items():
        assert content(name) == embedded_corpora.content(corpus), name


def test_small_corpora_equal_the_generated_ones() -> None:
    pairs, tagged = cldr_pairs("en", "de", seed=1, size=1000), cldr_tagged("en", seed=1, size=1000)
    assert content("pairs-en-de-seed1-size1000") == embedded_corpora.content(pairs)
    assert content("tags-en-seed1-size1000") == embedded_corpora.content(tagged)
    assert shipped.pairs("en", "de", seed=1, size=1000) == pairs
    assert shipped.tagged("en", seed=1, size=1000) == tagged


def test_shipped_corpora_are_small() -> None:
    sizes = [len((shipped.FOLDER / f"{name}{shipped.SUFFIX}").read_bytes()) for name in shipped.names()]
    assert max(sizes) < 1_000_000
    assert sum(sizes) < 4_000_000


def test_language_names_follow_unicode() -> None:
    assert embedded_corpora.NAMES.read_text(encoding="utf-8") == embedded_corpora.language_names()
    for code in ("en", "de", "pt_BR", "pt-BR", "zh_Hant", "sr_Latn_RS", "es_419"):
        name = Locale.parse(code.replace("-", "_")).get_display_name("en")
        assert _language_name(code) == name
    assert _language_name("xx") == "xx"
    assert _language_name("en-XX") == "en-XX"

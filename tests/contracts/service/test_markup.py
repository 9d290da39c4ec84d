"""HTML is split into the texts between its tags; everything else stays as it is."""

import time

import pytest

from manyheads.service.markup import of_html, of_lines


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<b>one</b> two", ["one", "two"]),
        ("plain &amp; simple", ["plain & simple"]),
        ("<p title='a'> line\n  two </p>\n<br/>end", ["line two", "end"]),
        ("<script>var x = '<b>no</b>'</script><STYLE>p {}</Style>yes", ["yes"]),
        ("<!-- <b>no</b> -->yes<!-- open", ["yes"]),
        ("a < b", ["a < b"]),
        ("<br>", []),
        ("", []),
        ("<b>", []),
    ],
)
def test_texts_between_tags_are_parts(text: str, parts: list[str]) -> None:
    split = of_html(text)
    assert split.parts == parts
    if "&" not in text and "\n  " not in text and "< " not in text:
        assert split.joined(parts) == text


def test_translations_are_escaped_and_spaces_kept() -> None:
    split = of_html("<b>one</b>  two\n")
    assert split.joined(["1 < 2", "zwei"]) == "<b>1 &lt; 2</b>  zwei\n"
    assert of_lines("a\n\nb").joined(["x", "", "y"]) == "x\n\ny"


@pytest.mark.parametrize("attack", ["<!--", "<", "<script>", "</", "&", "<a b='"])
def test_unclosed_markup_takes_linear_time(attack: str) -> None:
    began = time.process_time()
    of_html(attack * (100_000 // len(attack)))
    assert time.process_time() - began < 2

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
        ("<a title='x > y' href=\"a>b\">one</a>", ["one"]),
        ("<p title=it's>one</p> two 'three'", ["one", "two 'three'"]),
        ("<a title='open>one</a>", ["one"]),
        ("<pre>  one\n\n\ttwo  x\n</pre>three", ["one", "two  x", "three"]),
        ("<p translate='no'>Kein <p>x</p> y</p>one<img translate=no>two<br translate=\"no\"/>", ["one", "two"]),
        ('<span class="a notranslate">x</span><span class=b>one</span>', ["one"]),
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


@pytest.mark.parametrize("text", ["a\n\nb", "  - one\n\t3. two \n\n", "\n \n", "", "one\r\n two\r\n", "a\u2028b\n"])
def test_lines_keep_their_margins(text: str) -> None:
    split = of_lines(text)
    assert split.parts == [line.strip() for line in text.split("\n") if line.strip()]
    assert split.joined(split.parts) == text
    assert split.joined([part.upper() for part in split.parts]) == text.upper()


UNCLOSED = ("<!--", "<", "<script>", "</", "&", "<a b='", '<a b="', "<a =", "<a b= ", "<p translate=no>", "<pre>")


@pytest.mark.parametrize("attack", UNCLOSED)
def test_unclosed_markup_takes_linear_time(attack: str) -> None:
    began = time.process_time()
    of_html(attack * (100_000 // len(attack)))
    assert time.process_time() - began < 2

"""Examples on the explanation pages give the output shown there."""

import doctest
import re

from tests.paths import ROOT

PAGE = ROOT / "docs" / "explanation" / "why-each-part.md"


def test_examples_give_the_output_shown() -> None:
    text = PAGE.read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```pycon\n(.*?)```", text, re.DOTALL))
    example = doctest.DocTestParser().get_doctest(code, {}, PAGE.name, str(PAGE), 0)
    found: list[str] = []
    assert len(example.examples) > 10
    doctest.DocTestRunner(verbose=False).run(example, out=found.append)
    assert "".join(found) == ""

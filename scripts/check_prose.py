"""Find phrases in pages, docstrings, comments and messages that readers outside the project stumble over.

    python scripts/check_prose.py PATH ...      Python or Markdown files, or folders with them

Prints one line for each finding, and exits with status 1 if there is any. CONTRIBUTING.md has the rules of writing.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

REPLACEMENTS = {  # phrase -> words to use instead
    r"(is|are|was|were|be|been) told|tells? (of|which|what|how|whether)|told (of|by|apart)": "reports, raises, prints",
    r"(^|[.:;,(] )what (is|are|was|were|it|they|has|have|comes?|does|stands?|follows?)": "a noun for the thing",
    r"whoever|(^|[.:;,] )who [a-z]+s": "users, callers, clients",
    r"of (its|their|our) own|that of (a|an|the|its|each)|as are those": "the thing's name, or 'its'",
    r"stands? (in|beside|behind|before|above|below|for itself|alone)": "is in, is next to, precedes",
    r"so (many|much|few) (rows|steps|tokens|threads|bytes|of|as)": "N, that number of",
    r"as (many|much) as (there|it|they|the|a|one|are|is)": "the number or its name",
    r"beside|anew|once more|the same again": "next to, again, from scratch",
    r"nobody|thereof|whence|lest|whilst|heeds?|heeded|albeit": "everyday words",
    r"(goes|going|went|gone) (on with|on from|through)|has come|have come|comes to (the|a|be)": "continues, reads",
    r"(is|are|was|were) asked|asked (for|about)": "requested, required",
    r"knows? (no|nothing|of)|known by": "has no, is identified by",
    r"dice|in the house|the rooms?|dwellings?": "the field's word: RNG, package, module",
    r", (of|by|from|in|with) which": "a second sentence",
    r"nothing of|none of it": "no, not",
    r"(is|are|was|were) (kept|held) (in|as|for|by|there)": "stored, saved",
    r"of (today|yesterday|before|old)": "current, previous",
    r"where (there (is|are)|nothing|none|it is|they are|one is)": "if",
    r"(colour|behaviour|neighbour|favour)\w*|centre[ds]?|labell(ed|ing)|travelled": "American spelling",
    r"\w*(normal|initial|token|optim|serial|summar|recogn|general|factor|parallel)is(e[drs]?s?|ing|ation)":
        "American spelling",
}  # fmt: skip
PHRASES = {re.compile(rf"\b({phrase})\b", re.IGNORECASE): say for phrase, say in REPLACEMENTS.items()}
OPENING = re.compile(r"(what|how|whether|who|that|which|where)\b", re.IGNORECASE)
CODE = re.compile(r"`[^`]*`|\"[^\"]*\"|--[\w-]+|\b\w+[=_/.]\w[\w=_/.]*")  # names and quotations are not prose
ALLOWED = {  # (file, phrase): reason
    ("docs/papers/index.md", ", what does"): "the title of a paper",
    ("tests/contracts/tasks/masked_words/test_task.py", "nobody"): "text for a model",
    ("tests/contracts/tasks/masked_words/test_task.py", "stands below"): "text for a model",
    ("tests/support/opus.py", ": who walks"): "text for a model",
    ("tests/system/analysis/maps/test_clicks.py", "what is"): "text of the page",
    ("tests/system/service/test_deploy.py", "nobody"): "a user of the system",
}  # fmt: skip


def texts(source: str) -> Iterator[tuple[int, bool, str]]:
    """Yield (line, is a docstring, text) for each docstring, comment and message of at least four words."""
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text is not None:
                docstrings.add(node.body[0].lineno)
                yield node.body[0].lineno, True, text
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.lineno not in docstrings:
            text = node.value
            if text.count(" ") >= 3 and "\n" not in text:
                yield node.lineno, False, text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.string.count(" ") >= 3:
            yield token.start[0], False, token.string.lstrip("# ")


def paragraphs(source: str) -> Iterator[tuple[int, bool, str]]:
    """Yield (line, False, text) for each paragraph, item and row of a Markdown page, without blocks of code."""
    block: list[str] = []
    first, is_code = 0, False
    for number, line in enumerate([*source.splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        begins = not line.strip() or re.match(r" *(\||[-*] |\d+\. |#)", line)
        if block and (begins or is_code):
            yield first, False, " ".join(block)
            block = []
        if line.strip() and not is_code and not line.lstrip().startswith("```"):
            first = first if block else number
            block.append(re.sub(r"\]\([^)]*\)", "]", line))


def findings(file: Path) -> Iterator[str]:
    """Yield one line for each phrase in a file that is not allowed there."""
    read = paragraphs if file.suffix == ".md" else texts
    for line, is_docstring, text in read(file.read_text(encoding="utf-8")):
        prose = CODE.sub("", " ".join(text.split()))
        if is_docstring and (opening := OPENING.match(prose)):
            yield f"{file}:{line}: a docstring begins with {opening[0]!r}: begin with an imperative or a noun"
        for phrase, say in PHRASES.items():
            found = phrase.search(prose)
            if found and (file.as_posix(), found[1].lower()) not in ALLOWED:
                yield f"{file}:{line}: {found[1]!r}: say {say}"


def main() -> int:
    paths = [Path(argument) for argument in sys.argv[1:]]
    files = [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.[pm][yd]")))]
    lines = [line for file in files if file.name != Path(__file__).name for line in findings(file)]
    print(*lines, sep="\n", end="\n" if lines else "")
    return bool(lines)


if __name__ == "__main__":
    raise SystemExit(main())

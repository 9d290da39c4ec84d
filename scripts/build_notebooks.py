"""`python -m scripts.build_notebooks [--text] [NAME ...]`: execute the tutorials and write docs/tutorials/NAME.ipynb.

A source, docs/tutorials/source/NAME.md, is Markdown with cells of code (```{code-cell} python). Its notebook has the
same cells, the outputs of one execution, and neither times nor paths of the machine. Needs the extra `docs`.
`--text` executes nothing: it replaces the text of a notebook and keeps its code and outputs.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from manyheads.cli.tutorials import copy_tutorials, tutorial_files

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "tutorials"
SOURCES = PAGES / "source"
MAX_WIDTH = 900  # pixels of an image
MAX_TRUE_COLOR = 100_000  # bytes of an image; a larger one gets a palette
TIMEOUT = 900  # seconds of one cell, on a busy machine
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python", "pygments_lexer": "ipython3"},
}
INTERACTIVE = (
    '<p class="code-host">This output is interactive: open the notebook in Jupyter, or its page on the site.</p>'
)
# A command prints its results (stdout) as a notebook's output. Its log (stderr) is shown only if it fails.
SETUP = """
def system(command, ip=get_ipython()):
    import subprocess

    expanded = ip.var_expand(command, depth=1)
    done = subprocess.run(["bash", "-c", expanded], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    print(done.stdout, end="", flush=True)
    if done.returncode:
        raise RuntimeError(f"{expanded}: exit status {done.returncode}\\n{done.stderr[-2000:]}")
get_ipython().system = system
del system
"""

Cell = dict[str, Any]


def names() -> list[str]:
    return [path.stem for path in sorted(SOURCES.glob("*.md"))]


def cells(source: Path) -> list[Cell]:
    """Return the cells of a source, without outputs."""
    text = re.sub(r"\A---\n.*?^---\n", "", source.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    parts = re.split(r"^```\{code-cell\}[^\n]*\n(.*?)^```\n", text, flags=re.DOTALL | re.MULTILINE)
    found: list[Cell] = []
    for number, part in enumerate(parts):
        if number % 2:
            tags, code = re.fullmatch(r"(?::tags: \[(.*?)\]\n)?(.*)", part, re.DOTALL).groups()  # type: ignore[union-attr]
            metadata = {"tags": [tag.strip() for tag in tags.split(",")]} if tags else {}
            if "remove-cell" in metadata.get("tags", []):
                raise ValueError(f"{source}: remove-cell is not supported: a reader runs every cell")
            cell: Cell = {"cell_type": "code", "metadata": metadata, "source": code.strip("\n"), "outputs": []}
            found.append({**cell, "execution_count": None})
        elif prose := _links(re.sub(r"<!--.*?-->\n?", "", part, flags=re.DOTALL), source).strip():
            found.append({"cell_type": "markdown", "metadata": {}, "source": prose})
    return [{"id": f"{source.stem}-{index:03}", **cell} for index, cell in enumerate(found)]


def _links(text: str, source: Path) -> str:
    """Turn links that are relative to the source into links relative to the notebook."""

    def moved(match: re.Match[str]) -> str:
        path, anchor = match[1], match[2] or ""
        target = Path(os.path.normpath(source.parent / path))
        if target.parent == source.parent:
            return f"]({target.stem}.ipynb{anchor})"
        return f"]({Path(os.path.relpath(target, source.parents[1])).as_posix()}{anchor})"

    parts = re.split(r"(^```.*?^```$|`[^`\n]*`)", text, flags=re.DOTALL | re.MULTILINE)
    parts[::2] = [re.sub(r"\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)", moved, part) for part in parts[::2]]
    return "".join(parts)


def notebook(cells: list[Cell]) -> dict[str, Any]:
    return {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}


def executed(source: Path) -> list[Cell]:
    """Execute the cells of a source in a folder of `manyheads tutorials` and return them with their outputs."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    setup: Cell = {
        "id": "setup",
        "cell_type": "code",
        "metadata": {},
        "source": SETUP,
        "outputs": [],
        "execution_count": None,
    }
    book = nbformat.from_dict(notebook([setup, *cells(source)]))
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        copy_tutorials(Path(folder), tutorial_files())
        resources = {"metadata": {"path": folder}}
        client = NotebookClient(book, timeout=TIMEOUT, kernel_name="python3", resources=resources, record_timing=False)
        try:
            client.execute()
        except CellExecutionError as error:
            raise RuntimeError(_text(str(error), folder)) from None
        return [normalized(cell, folder) for cell in json.loads(nbformat.writes(book))["cells"][1:]]


def with_text(source: Path, committed: Path) -> list[Cell]:
    """Return the cells of a source with the outputs of a committed notebook that has the same code."""
    kept = [cell for cell in json.loads(committed.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    found = cells(source)
    code = [cell for cell in found if cell["cell_type"] == "code"]
    if [(c["source"], c["metadata"]) for c in code] != [("".join(c["source"]), c["metadata"]) for c in kept]:
        raise RuntimeError("the code has changed: build the notebook without --text")
    for cell, old in zip(code, kept, strict=True):
        cell["outputs"] = [{**o, "text": "".join(o["text"])} if "text" in o else o for o in old["outputs"]]
    return found


def normalized(cell: Cell, folder: str) -> Cell:
    """Return an executed cell without progress bars, escape codes, paths of the machine, and large images."""
    cell = {**cell, "source": "".join(cell["source"])}
    if cell["cell_type"] == "markdown":
        return cell
    outputs: list[dict[str, Any]] = []
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            if output["name"] == "stderr":
                continue
            text = _text("".join(output["text"]), folder)
            if outputs and outputs[-1]["output_type"] == "stream":
                outputs[-1]["text"] += text
            elif text:
                outputs.append({"output_type": "stream", "name": "stdout", "text": text})
        elif output["output_type"] in ("display_data", "execute_result"):
            output["data"] = {kind: _data(kind, data, folder) for kind, data in output["data"].items()}
            outputs.append({"output_type": "display_data", "metadata": {}, "data": output["data"]})
        else:
            outputs.append(output)
    return {**cell, "execution_count": None, "metadata": _tags(cell), "outputs": outputs}


def _tags(cell: Cell) -> dict[str, Any]:
    return {"tags": cell["metadata"]["tags"]} if cell["metadata"].get("tags") else {}


def _text(text: str, folder: str) -> str:
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    text = re.sub(r"^.*\r(?!\n)", "", text.replace("\r\n", "\n"), flags=re.MULTILINE)
    for path, short in ((f"{folder}/", ""), (folder, "."), (f"{ROOT}/", ""), (sys.prefix, ".venv")):
        text = text.replace(path, short) if path.strip("/") else text
    return text


def _data(kind: str, data: Any, folder: str) -> Any:
    if kind == "image/png":
        return shrunk(data)
    text = _text("".join(data), folder) if isinstance(data, str | list) else data
    return text + INTERACTIVE if kind == "text/html" and "<iframe" in text else text


def shrunk(png: str) -> str:
    """Return a PNG in base64 with at most MAX_WIDTH pixels in a row; a large one has 256 colors."""
    from PIL import Image

    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGBA")
    image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    if image.width > MAX_WIDTH:
        image = image.resize((MAX_WIDTH, round(image.height * MAX_WIDTH / image.width)), Image.Resampling.LANCZOS)
    small = _png(image)
    if len(small) > MAX_TRUE_COLOR:
        small = _png(image.quantize(256, dither=Image.Dither.NONE, kmeans=2))
    return base64.b64encode(small).decode()


def _png(image: Any) -> bytes:
    data = io.BytesIO()
    image.save(data, "PNG", optimize=True)
    return data.getvalue()


def written(cells: list[Cell]) -> str:
    """Return the notebook's file. `source` and `text` are lists of lines, so that changes are easy to review."""
    lines = json.loads(json.dumps(notebook(cells)))
    for cell in lines["cells"]:
        cell["source"] = cell["source"].splitlines(keepends=True)
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = output["text"].splitlines(keepends=True)
    return json.dumps(lines, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def main(arguments: list[str]) -> int:
    failed, only_text = 0, "--text" in arguments
    for name in [argument for argument in arguments if argument != "--text"] or names():
        start = perf_counter()
        try:
            source = SOURCES / f"{name}.md"
            text = written(with_text(source, PAGES / f"{name}.ipynb") if only_text else executed(source))
        except RuntimeError as error:  # of a cell, or changed code
            print(f"{name}: {error}", flush=True)
            failed += 1
            continue
        (PAGES / f"{name}.ipynb").write_text(text, encoding="utf-8")
        print(f"{name}.ipynb: {len(text.encode()) / 1e6:.2f} MB in {perf_counter() - start:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

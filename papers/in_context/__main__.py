"""In-context learning on lists of dates, as shown in docs/papers/gpt3.md.

python -m papers.in_context write lists              # training documents and test tables
python -m papers.in_context score lists runs/lists   # exact match after 0, 1, 4 and 8 examples
"""

from __future__ import annotations

import argparse
from pathlib import Path

import manyheads
from manyheads.errors import UserError
from manyheads.tasks.language.predictor import LanguageModel
from papers.command import about, run
from papers.in_context.lists import scores, write

SHOTS = (0, 1, 4, 8)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m papers.in_context", description=about(__doc__))
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in (("write", "write the documents and tables"), ("score", "score a trained language model")):
        commands.add_parser(name, help=words).add_argument(
            "folder", type=Path, help="folder of the documents and tables"
        )
    commands.choices["score"].add_argument("model", help="directory of a language model")
    options = parser.parse_args(arguments)
    if options.command == "write":
        return write(options.folder)
    model = manyheads.load(options.model)
    if not isinstance(model, LanguageModel):
        raise UserError(f"{options.model}: expected a language model")
    if not any(options.folder.glob("seen-*.tsv")):
        raise UserError(f"{options.folder}: found no tables; write them with: python -m papers.in_context write FOLDER")
    print("shots  seen template  new template")
    for shots in SHOTS:
        found = scores(model, options.folder, shots)
        print(f"{shots:5}  {found['seen']:13.3f}  {found['unseen']:12.3f}")


if __name__ == "__main__":
    raise SystemExit(run(main))

"""Output of the commands on small models in small batches: alone, or under torchrun as one of several processes.

python -m tests.support.predictions RUNS OUT
"""

import os
import sys
from contextlib import nullcontext, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import manyheads.tasks.images.objective
import manyheads.tasks.images.predictor
import manyheads.tasks.language.objective
import manyheads.tasks.language.predictor
import manyheads.tasks.masked_words.predictor
import manyheads.tasks.outputs
import manyheads.tasks.translation.predictor
from manyheads import cli
from manyheads.training.distributed import distributed_context

TASKS: Any = manyheads.tasks
TEXTS = [f"{'three two ' * (n % 5)}one {n}" for n in range(1, 24)]
# verb, model, further arguments, lines on stdin
CALLS: dict[str, tuple[list[str], list[str]]] = {
    "translate": (["translate", "transformer", "--nbest", "2"], TEXTS),
    "blank": (["translate", "transformer"], [*TEXTS[:5], "", *TEXTS[5:]]),
    "classify": (["classify", "text-classifier", "--top", "2", "--json"], TEXTS),
    "tag": (["tag", "bert-tagger"], TEXTS),
    "fill": (["fill", "bert", "--top", "2"], [f"{text} [MASK]" for text in TEXTS]),
    "generate": (["generate", "gpt2", "--max-tokens", "5", "--seed", "3"], [f"{n}" for n in range(23)]),
    "one": (["classify", "text-classifier", "alone"], []),
    **{f"evaluate {name}": (["evaluate", name, "--json", *(["--data", data] if data else [])], []) for name, data in (
        ("transformer", ""), ("bert", ""), ("gpt2", "documents.txt"),
        ("text-classifier", "texts.tsv"), ("bert-tagger", ""), ("vit", ""),
    )},
    "refused": (["classify", "vit"], ["no-such-image"] * 9),
}  # fmt: skip


def small_batches() -> None:
    """So that few items are several batches; the last round of several processes is not full."""
    TASKS.outputs.BATCH_TOKENS = 60
    TASKS.translation.predictor.DECODING_TOKENS = 80
    TASKS.images.objective.EVALUATION_BATCH = TASKS.images.predictor.EVALUATION_BATCH = 4
    TASKS.language.predictor.GENERATED_TOKENS = 60
    TASKS.language.objective.SCORED_TOKENS = 40
    TASKS.masked_words.predictor.MAX_TEXTS = 4


def main() -> None:
    runs, out = map(Path, sys.argv[1:3])
    small_batches()
    ranks = distributed_context()
    for name, (arguments, lines) in CALLS.items():
        read, write = os.pipe()
        if ranks.first:  # the other ranks have no input
            os.write(write, "".join(line + "\n" for line in lines).encode())
        os.close(write)
        os.dup2(read, 0)
        verb, model, *more = arguments
        with redirect_stdout(StringIO()) if ranks.first else nullcontext() as said:
            status = cli.main([verb, str(runs / model), *(str(runs / word) if "." in word else word for word in more)])
        if said is not None:
            (out / name).write_text(f"{status}\n{said.getvalue()}")


if __name__ == "__main__":
    main()

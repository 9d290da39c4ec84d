"""In-context learning (Brown 2020, section 2): a language model completes a text that begins with examples of a task.

input -> output      K examples, each on a line
input -> output
input ->             the model completes this line
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

from manyheads.data.readers.parallel import Pairs
from manyheads.data.sources.corpora import ParallelSource
from manyheads.data.text.text_faults import ItemError
from manyheads.errors import UserError
from manyheads.tasks.evaluation import EvaluationResult

ARROW = " ->"  # text between input and output


def read_prompts(data: object, shots: int, *, skip_bad_lines: bool = False) -> tuple[Pairs, list[str]]:
    """Return the test pairs of a table, and the prompt of each pair: `shots` random examples, then its input.

    data  table with the columns input and output, whose other rows are the examples; directory with a test table and a
          train table that has the examples; or pairs in memory

    Raises UserError if there are too few examples.
    """
    if data is None:
        raise UserError("shots need pairs: give a table with the columns input and output (--data)")
    source = ParallelSource(source="input", target="output", skip_bad_lines=skip_bad_lines)
    tests = examples = source.read_other(data)
    if isinstance(data, str | Path) and Path(data).is_dir() and (train := source.find(str(data)).train):
        examples = source.read_one(train)
    outputs = dict(zip(examples.sources, examples.targets, strict=True))
    if shots and shots >= len(outputs):
        raise UserError(f"shots is {shots}: expected less than the number of different inputs, {len(outputs)}")

    def prompt(index: int, text: str) -> str:
        drawn = Random(index).sample(list(outputs), shots + 1) if shots else []
        chosen = [example for example in drawn if example != text][:shots]
        return "".join(f"{example}{ARROW} {outputs[example]}\n" for example in chosen) + text + ARROW

    return tests, [prompt(index, text) for index, text in enumerate(tests.sources)]


def check_room(prompt_tokens: Iterable[int], answer_tokens: int, limit: int) -> None:
    """Raise ItemError for the first prompt that leaves less room than `answer_tokens` for the output."""
    for index, tokens in enumerate(prompt_tokens):
        if tokens + answer_tokens > limit:
            fault = f"has {tokens:,} tokens with its examples, and outputs have up to {answer_tokens:,}"
            raise ItemError(index, f"{fault}; the model takes {limit:,}: reduce the shots", f"prompt {index + 1}")


def completion_result(tests: Pairs, outputs: Sequence[str], shots: int) -> EvaluationResult:
    """Return the fraction of the test pairs whose output the model has completed exactly (`exact_match`)."""
    found, references = ([text.strip() for text in texts] for texts in (outputs, tests.targets))
    quality = [float(output == text) for output, text in zip(found, references, strict=True)]
    score = {"value": sum(quality) / len(quality), "signature": f"{shots} shots|{len(quality):,} pairs"}
    return EvaluationResult(
        list(tests.sources), found, references, quality, {"exact_match": score}, confidences=quality, data=tests
    )

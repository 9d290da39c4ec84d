"""Question answering: windows, targets, loss and logits of transformers, n-best by brute force, null answers."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer

from manyheads import directory
from manyheads.core.runtime import ComputeConfig, prepare
from manyheads.data.readers.squad import Answer, Question, Questions
from manyheads.data.sources.corpora import QuestionSource
from manyheads.data.text.tokenizers import train_wordpiece
from manyheads.models.bert import Bert, BertConfig
from manyheads.tasks.answering.objective import AnsweringObjective
from manyheads.tasks.answering.passages import NULL, FoundAnswer, best_answers, passage_logits, passages, target_of
from manyheads.tasks.answering.predictor import QuestionAnswerer
from manyheads.tasks.evaluation import trust
from tests.support.learning import learn

CONTEXTS = [
    "Ada wrote the first program in 1843. Byron wrote poems.",
    "Grace found a moth – a “bug” – in 1947! The café was open.",
]
ITEMS = [
    ("Who wrote the first program?", 0, "Ada"), ("When?", 0, "1843"), ("Who wrote poems?", 0, "Byron"),
    ("What did Grace find?", 1, "a moth"), ("When was the moth found?", 1, "1947"), ("Who sang?", 1, None),
]  # fmt: skip


def question(number: int) -> Question:
    text, context, answer = ITEMS[number]
    at = CONTEXTS[context]
    answers = () if answer is None else (Answer(answer, at.index(answer)),)
    return Question(str(number), text, at, answers, str(context))


QUESTIONS = Questions([question(i) for i in range(len(ITEMS))])
PAIRS = [(item.question, item.context) for item in QUESTIONS.items]


@pytest.fixture(scope="module")
def compute() -> ComputeConfig:
    return prepare()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_wordpiece([*CONTEXTS, *(text for text, _, _ in ITEMS)] * 2, 90)


def reader(tokenizer: Tokenizer, positions: int = 48, segments: int = 2) -> Bert:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "width": 16,
        "layers": 2,
        "heads": 2,
        "feed_forward": 32,
        "max_positions": positions,
        "segment_types": segments,
    }
    model = Bert(
        BertConfig(vocab=tokenizer.get_vocab_size(), head="question", dropout=0.0, attention_dropout=0.0, **sizes)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def task_for(model: Bert, tokenizer: Tokenizer, compute: ComputeConfig, length: int = 48) -> AnsweringObjective:
    return AnsweringObjective(
        model, tokenizer, QUESTIONS, QUESTIONS, compute=compute, batch_tokens=1024, max_length=length, stride=6,
        max_query=64, seed=1,
    )  # fmt: skip


def saved(path: Path, model: Bert, tokenizer: Tokenizer) -> QuestionAnswerer:
    directory.save(path, model, tokenizer)
    return QuestionAnswerer(directory.load(path), prepare())


@pytest.mark.parametrize("length", [48, 22, 14])
def test_windows_without_the_answer_have_no_target(tokenizer: Tokenizer, length: int) -> None:
    several = passages(tokenizer, PAIRS, max_length=length, stride=3, max_query=6)
    assert max(len(p.ids) for p in several) <= length
    whole = 0
    for passage in several:
        item = QUESTIONS.items[passage.question]
        context = passage.spans[0, 0], passage.spans[-1, 1]
        if not item.answers:
            continue
        start, end = item.answers[0].start, item.answers[0].start + len(item.answers[0].text)
        first, last = target_of(passage, start, end)
        if context[0] <= start and end <= context[1]:
            spans = passage.spans[first - passage.first], passage.spans[last - passage.first]
            assert item.context[spans[0][0] : spans[1][1]] == item.answers[0].text
            whole += 1
        else:
            assert (first, last) == (NULL, NULL)
    assert whole >= 5
    one = [p for p in several if p.question == 3]
    owned = [tuple(span) for p in one for span in p.spans[p.owned].tolist()]
    encoding = tokenizer.encode(CONTEXTS[1], add_special_tokens=False)
    assert sorted(owned) == sorted(encoding.offsets)  # every token in one window
    if length == 48:
        pair = tokenizer.encode(*PAIRS[1])
        assert (several[1].ids.tolist(), several[1].segments.tolist()) == (pair.ids, pair.type_ids)
        assert several[0].first == 1 + 6 + 1  # a longer question is cut


def test_an_answer_within_a_token_is_the_token(tokenizer: Tokenizer) -> None:
    (passage,) = passages(tokenizer, [("Who?", "Byron wrote")])
    ids = tokenizer.encode("Byron", add_special_tokens=False).ids
    first, last = target_of(passage, 1, 4)
    assert passage.spans[first - passage.first][0] <= 1 < passage.spans[first - passage.first][1]
    assert passage.spans[last - passage.first][0] < 4 <= passage.spans[last - passage.first][1]
    assert target_of(passage, 0, 5) == (passage.first, passage.first + len(ids) - 1)


def test_an_answer_excludes_surrounding_blanks(tokenizer: Tokenizer, compute: ComputeConfig) -> None:
    context = f" {CONTEXTS[0]}\n"
    bare, wide = (
        Questions([Question("1", "Who?", context, (Answer(text, context.index(text)),), "0")])
        for text in (CONTEXTS[0][-5:], CONTEXTS[0][-5:] + "\n")
    )
    model = reader(tokenizer, positions=200)
    tasks = [
        AnsweringObjective(
            model,
            tokenizer,
            questions,
            questions,
            compute=compute,
            batch_tokens=400,
            max_length=200,
            stride=6,
            max_query=64,
            seed=1,
        )
        for questions in (bare, wide)
    ]
    targets = [task.batches(0)[0].targets.tolist() for task in tasks]
    assert targets[0] == targets[1] != [[NULL, NULL]]


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_loss_and_logits_equal_transformers(
    tmp_path: Path, tokenizer: Tokenizer, compute: ComputeConfig, mode: str
) -> None:
    model = reader(tokenizer)
    directory.save(tmp_path, model, tokenizer)
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path)
    for each in (model, theirs):
        each.train(mode == "train")
    task = task_for(model, tokenizer, compute)
    (batch,) = task.batches(0)
    total = 0.0
    for ids, n, segments, (start, end) in zip(batch.ids, batch.lengths, batch.segments, batch.targets, strict=True):
        found = theirs(
            ids[None, :n], token_type_ids=segments[None, :n], start_positions=start[None], end_positions=end[None]
        )
        total += found.loss
    assert isinstance(total, torch.Tensor)
    loss = task.loss(batch).total
    torch.testing.assert_close(loss, total, rtol=0, atol=1e-5)
    loss.backward()
    total.backward()
    assert model.classifier is not None
    torch.testing.assert_close(model.classifier.weight.grad, theirs.qa_outputs.weight.grad, rtol=0, atol=1e-5)
    model.eval()
    assert task.validate()["loss"] == pytest.approx(total.item() / len(ITEMS), abs=1e-5)


def test_the_n_best_cover_all_spans(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Brute force over transformers' logits of the one window."""
    answerer = saved(tmp_path, reader(tokenizer), tokenizer)
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path).eval()
    text, context = PAIRS[3]
    encoding = tokenizer.encode(text, context)
    with torch.no_grad():
        out = theirs(torch.tensor([encoding.ids]), token_type_ids=torch.tensor([encoding.type_ids]))
    start, end = out.start_logits[0], out.end_logits[0]
    inside = [i for i, s in enumerate(encoding.sequence_ids) if s == 1]
    spans: dict[str, float] = {}
    scores: list[float] = []
    for i in inside:
        for j in inside:
            if i <= j < i + 4:
                words = context[encoding.offsets[i][0] : encoding.offsets[j][1]]
                scores.append(float(start[i] + end[j]))
                spans[words] = max(spans.get(words, -1e9), scores[-1])
    expected = sorted(spans.items(), key=lambda item: -item[1])[:7]
    found = answerer.answer(text, context, nbest=7, max_answer=4)
    assert [a.text for a in found] == [words for words, _ in expected]
    assert [a.score for a in found] == pytest.approx([score for _, score in expected], abs=1e-5)
    total = torch.tensor(scores).logsumexp(0)  # over all spans, whatever the number of answers
    for count in (1, 2, 7):
        probabilities = [float((score - total).exp()) for _, score in expected[:count]]
        answers = answerer.answer(text, context, nbest=count, max_answer=4)
        assert [a.probability for a in answers] == pytest.approx(probabilities, abs=1e-5)
    assert all(context[a.start : a.end] == a.text for a in found)

    null = float(start[0] + end[0])
    margin = null - expected[0][1]
    assert answerer.answer(text, context, max_answer=4, null_threshold=margin - 1e-3)[0].text == ""
    with_null = answerer.answer(text, context, max_answer=4, null_threshold=margin + 1e-3)
    assert with_null[0].text == expected[0][0]
    assert [a.score for a in with_null if not a.text] == pytest.approx([null], abs=1e-5)
    total = torch.tensor([*scores, null]).logsumexp(0)
    assert with_null[0].probability == pytest.approx(float((expected[0][1] - total).exp()), abs=1e-5)


def test_windows_are_combined(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """The best span of each window, where its first token has most context; the least null score of all."""
    model = reader(tokenizer)
    draw = random.Random(0)
    several = passages(tokenizer, PAIRS[:1], max_length=16, stride=3, max_query=4)
    assert len(several) > 2
    logits = [torch.tensor([[draw.random(), draw.random()] for _ in p.ids]) for p in several]
    context = PAIRS[0][1]
    candidates, nulls = [], []
    for passage, each in zip(several, logits, strict=True):
        nulls.append(float(each[0].sum()))
        for i in range(len(passage.spans)):
            for j in range(i, min(i + 3, len(passage.spans))):
                if passage.owned[i]:
                    score = float(each[passage.first + i, 0] + each[passage.first + j, 1])
                    candidates.append((score, context[passage.spans[i, 0] : passage.spans[j, 1]]))
    (found,) = best_answers(several, logits, [context], 5, 3, None)
    best = max(candidates)
    assert (found[0].score, found[0].text) == (pytest.approx(best[0]), best[1])
    total = torch.tensor([score for score, _ in candidates]).logsumexp(0)
    assert found[0].probability == pytest.approx(float((best[0] - total).exp()), abs=1e-5)
    (found,) = best_answers(several, logits, [context], 500, 3, 1e9)
    assert [a.score for a in found if not a.text] == pytest.approx([min(nulls)])
    assert len(passage_logits(model, several, prepare())) == len(several)


def test_training_learns_answers(tmp_path: Path, tokenizer: Tokenizer, compute: ComputeConfig) -> None:
    model = reader(tokenizer)
    task = task_for(model.train(), tokenizer, compute)
    learn(task, torch.optim.AdamW(model.parameters(), 1e-2), 120)
    model.eval()
    values = task.validate()
    assert values["loss"] < 0.1
    assert values["squad_em"] == values["squad_f1"] == 1.0
    answerer = saved(tmp_path, model, tokenizer)
    outcome = answerer.evaluate(QUESTIONS)
    assert outcome.outputs == [answer or "" for _, _, answer in ITEMS]
    assert outcome.metrics["squad_em"]["value"] == 1.0
    assert "6 questions, 1 without an answer" in outcome.metrics["squad_em"]["signature"]
    best = answerer.answer(*PAIRS[0])[0]
    assert isinstance(best, FoundAnswer)
    assert (best.text, best.start, best.end) == ("Ada", 0, 3)
    together = answerer.answers(PAIRS)
    for pair, several in zip(PAIRS, together, strict=True):
        assert answerer.answer(*pair)[0].text == several[0].text


def test_bad_input_is_reported(tmp_path: Path, tokenizer: Tokenizer) -> None:
    answerer = saved(tmp_path / "run", reader(tokenizer), tokenizer)
    for blank, name in ((("", "x"), "question"), (("x", " \n"), "context")):
        with pytest.raises(ValueError, match=f"the {name} is blank"):
            answerer.answer(*blank)
    for half, name in ((("caf\udce9", "x"), "question"), (("x", "caf\udce9"), "context")):
        with pytest.raises(
            ValueError, match=f"the {name} contains half a character .* at position 4; give valid UTF-8"
        ):
            answerer.answer(*half)
    with pytest.raises(ValueError, match="question 2 contains half a character"):
        answerer.answers([("Who?", "x"), ("\ud800", "x")])
    with pytest.raises(ValueError, match="the context has no tokens: give a text"):
        answerer.answer("Who?", "\u0000")
    assert answerer.answers([("Who?", "\u0000")])[0][0].text == ""  # nothing that the tokenizer would see
    wrong: list[tuple[str, Any]] = [("nbest", 0), ("nbest", -1), ("max_answer", 0), ("null_threshold", float("nan"))]
    for setting, value in wrong:
        with pytest.raises(ValueError, match=f"{setting} is {value}: expected"):
            answerer.answer("Who?", "Ada", **{setting: value})
    with pytest.raises(ValueError, match="leaves no space for the context"):
        passages(tokenizer, PAIRS, max_length=8)
    with pytest.raises(ValueError, match="found no result.json that names its test data"):
        answerer.outcome()
    bare = Tokenizer.from_str(tokenizer.to_str())
    bare.post_processor = None
    with pytest.raises(ValueError, match="adds no token before a pair"):
        passages(bare, PAIRS)
    item = {"id": "1", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]}
    content = {"data": [{"title": "t", "paragraphs": [{"context": CONTEXTS[0], "qas": [item]}]}]}
    (tmp_path / "test.json").write_text(json.dumps(content))
    (tmp_path / "run" / "result.json").write_text(
        json.dumps(
            {
                "data": {
                    **asdict(QuestionSource(test=str(tmp_path / "test.json"))),
                    "kind": "questions",
                    "fingerprints": {"test": "0" * 16},
                }
            }
        )
    )
    assert len(answerer.outcome(str(tmp_path)).outputs) == 1
    trust(tmp_path / "run")
    with pytest.raises(ValueError, match="changed since the run"):
        answerer.outcome()


def test_models_without_segments_separate_texts_by_a_separator(tmp_path: Path, tokenizer: Tokenizer) -> None:
    answerer = saved(tmp_path / "run", reader(tokenizer, segments=1), tokenizer)
    answer = answerer.answer("Who?", CONTEXTS[0])[0]
    assert answer.text == CONTEXTS[0][answer.start : answer.end]
    assert answerer.attend("Who?", CONTEXTS[0]).axes

"""Checks of the exercises in the tutorial about the lecture's first part, on language."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import manyheads
from manyheads.core.attention import Attention
from manyheads.core.block import Block
from manyheads.core.masks import Mask

from .checking import Mistake, call, compare_numbers, exercise, kind, number, seeded, tensor

HALF = 6  # digits that the copying model repeats
PLACES = 8  # of the treasure hunt


@exercise
def masking(answer: object) -> str:
    """Numbers of tokens that BERT replaces by [MASK], replaces by another token, and only predicts, of 1,000."""
    mistakes = {
        "slide 19 says that 15% become [MASK], but the paper replaces only 80% of these tokens.": (150, None, None),
        "these are parts of all 1,000 tokens. BERT chooses 15% of the tokens first.": (800, 100, 100),
        "these are percentages. The question is how many of the 1,000 tokens.": (80, 10, 10),
        "the second and the third number are 10% of the 150 tokens, not of the 1,000.": (120, 100, 100),
        "the third number is about tokens that BERT must predict. It must not predict the other 850.": (120, 15, 850),
        "these are fractions of the 1,000 tokens. The question is how many tokens.": (0.12, 0.015, 0.015),
        "these are fractions of the chosen tokens. The question is how many of the 1,000 tokens.": (0.8, 0.1, 0.1),
        "the order is [MASK], another token, not changed. Most of the 150 tokens become [MASK].": (15, 120, 15),
        "the order is [MASK], another token, not changed. Only 10% do not change.": (15, 15, 120),
    }
    compare_numbers(answer, (120, 15, 15), mistakes, ["[MASK]", "another token", "not changed"])
    return "BERT predicts 150 of 1,000 tokens, and sees 30 of them without a [MASK]."


@exercise
def bert_parameters(answer: object) -> str:
    """Number of parameters of BERT without its output layer for words, for any sizes."""
    for vocab, width, layers, hidden, positions, segments in ((100, 12, 3, 50, 20, 4), (30_522, 768, 12, 3072, 512, 2)):
        tables = (vocab + positions + segments) * width
        attention, feed_forward = 4 * (width * width + width), 2 * width * hidden + hidden + width
        pooler = width * width + width
        right = tables + 2 * width + layers * (attention + feed_forward + 4 * width) + pooler
        biases = layers * (5 * width + hidden) + width
        mistakes = {
            "the biases of the linear layers are missing.": right - biases,
            "the biases of the linear layers are counted twice.": right + biases,
            "4 * width numbers are missing in each layer: the biases of the attention, or both norms.": (
                right - 4 * layers * width
            ),
            "all norms are missing: two in each layer, and one of the embeddings.": right
            - 4 * layers * width
            - 2 * width,
            "the biases of the feed-forward networks are missing.": right - layers * (width + hidden),
            "each layer has two norms, one after the attention and one after the feed-forward network.": (
                right - 2 * layers * width
            ),
            "the norm of the embeddings is missing.": right - 2 * width,
            "a norm has 2 * width numbers, a factor and a bias for each feature.": right - width - 2 * layers * width,
            "the pooler is missing, a linear layer above the first token.": right - pooler,
            "the pooler is missing, and so are the biases of the linear layers.": right - pooler - biases + width,
            "the table of the positions is missing.": right - positions * width,
            "the table of the segments is missing.": right - segments * width,
            "the tables of the positions and segments are missing.": right - (positions + segments) * width,
            "the attention has four matrices: queries, keys, values and the output.": right - layers * (pooler),
            "the feed-forward network has two matrices.": right - layers * width * hidden,
            "one layer is counted. There are several.": right - (layers - 1) * (attention + feed_forward + 4 * width),
            "the output for words uses the table of the embeddings. It is counted twice here.": right + vocab * width,
        }
        found = call(answer, vocab, width, layers, hidden, positions, segments)
        compare_numbers(found, [right], {hint: [wrong] for hint, wrong in mistakes.items()}, ["the number"])
    return "BERT-base has 109,482,240 parameters, which the paper rounds to 110M."


class Copier(nn.Module):
    """One block that writes a text of digits again. Only its head number 2 sees further back than three places."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(10, 32), nn.Embedding(2 * HALF, 32)
        self.block, self.output = Block(Attention(32, 4), None), nn.Linear(32, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        place = torch.arange(length)
        sees = (place[:, None] - place <= 3).repeat(4, 1, 1)
        sees[2] = True
        x = self.words(tokens) + self.places.weight[:length]
        logits: Tensor = self.output(self.block(x, mask=Mask(causal=True) & Mask(dense=sees[None])))
        return logits


def copied(count: int) -> Tensor:
    """Return texts of six random digits that are then repeated."""
    return torch.randint(10, (count, HALF)).repeat(1, 2)


@cache
def copying_model() -> Copier:
    """Train a model with one layer of four heads to repeat six digits. It takes a few seconds."""
    with seeded():
        model = Copier()
        adam = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(150):
            texts = copied(32)
            logits = model(texts[:, :-1])[:, HALF - 1 :]
            loss = F.cross_entropy(logits.flatten(0, 1), texts[:, HALF:].flatten())
            adam.zero_grad()
            loss.backward()
            adam.step()
    return model.eval()


@exercise
def copying_head(answer: object) -> str:
    """Number of the head of `copying_model` that copies."""
    head = number(answer, "the head")
    if head not in range(4):
        raise Mistake(f"the model has the heads 0 to 3, found {head:g}.")
    model, texts = copying_model(), copied(200)
    with torch.no_grad(), manyheads.record(model) as maps, manyheads.edit(model) as change:
        change.zero("block.attention", heads=[int(head)])
        right = (model(texts[:, :-1]).argmax(-1) == texts[:, 1:])[:, HALF - 1 :].double().mean()
    weights = maps["block.attention"][0][:, int(head)].mean(0).diagonal(1 - HALF).mean()
    if head != 2:
        raise Mistake(
            f"head {head:g} gives a weight of {weights:.2f} to the digit that comes next. "
            f"Without this head, {right:.0%} of the digits are still right."
        )
    return f"it gives a weight of {weights:.2f} to the digit that comes next. Without it, {right:.0%} are right."


def arrived(notes: Tensor, count: int) -> Tensor:
    """Return the places after following `count` notes from each place, for notes (B, places)."""
    place = torch.arange(notes.shape[1]).expand_as(notes)
    for _ in range(count):
        place = notes.gather(1, place)
    return place


def _accuracy(model: nn.Module, count: int) -> float:
    """Train a model to follow `count` notes. Return its accuracy for new notes."""
    adam = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(300):
        notes = torch.rand(64, PLACES).argsort(1)
        loss = F.cross_entropy(model(notes).flatten(0, 1), arrived(notes, count).flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
        if loss < 0.05:
            break
    with torch.no_grad():
        notes = torch.rand(500, PLACES).argsort(1)
        return float((model(notes).argmax(-1) == arrived(notes, count)).double().mean())


@exercise
def one_layer(hunter: object, answer: object) -> str:
    """A model of the treasure hunt with any number of layers, and a number of notes that needs two layers."""
    count = number(answer, "the number of notes")
    if count in (0, 1):
        notes = "one note" if count else "no note"
        raise Mistake(f"the vector of a place contains its note, so following {notes} needs no attention.")
    if count not in range(2, 7):
        raise Mistake(f"expected 2 to 6 notes, found {count:g}.")
    if isinstance(hunter, nn.Module):
        raise Mistake("this is one model. Pass the class, so that the check can make models with one and two layers.")
    models = [call(hunter, layers) for layers in (1, 2)]
    sizes = []
    for layers, model in enumerate(models, 1):
        if not isinstance(model, nn.Module):
            raise Mistake(f"expected a torch.nn.Module, found {kind(model)}.")
        if getattr(model, "blocks", None) is ...:
            raise Mistake("replace the ... in the class.")
        blocks = [module for module in model.modules() if isinstance(module, Block)]
        sizes.append(len(blocks))
        if len(blocks) != layers:
            found = f"{len(blocks)} different block{'s' * (len(blocks) != 1)}"
            raise Mistake(f"the model for {layers} layer{'s' * (layers > 1)} has {found}.")
        if any(block.feed_forward is not None for block in blocks):
            raise Mistake("a block has a feed-forward network. Pass None, so that only attention is left.")
        tensor(call(model, torch.arange(PLACES).repeat(4, 1)), (4, PLACES, PLACES))
    one, two = (_accuracy(model, int(count)) for model in models if isinstance(model, nn.Module))
    measured = f"for {count:g} notes, one layer is right for {one:.0%} and two layers for {two:.0%}"
    if one > 0.9:
        raise Mistake(f"{measured}. One layer is enough: each place looks at the place that its note names.")
    if two < 0.9:
        raise Mistake(f"{measured}. Two layers are not enough, or the training is too short for this number of notes.")
    return f"{measured}."


@exercise
def right_heads(answer: object) -> str:
    """Fraction of the words whose largest attention weight is on their head word."""
    weights = torch.randn(9, 9).softmax(-1)
    best, column = weights.argmax(1), weights.argmax(0)
    heads = [int(head) + 1 for head in best]
    # a root and three words for which the head is wrong, so that each mistake below gives another fraction
    heads[1], heads[4], heads[6], heads[7] = 0, int(best[4]), int(column[6]) + 1, int(column[7]) + 1

    def fraction(chosen: Tensor, shift: int, words: list[int]) -> float:
        return sum(int(chosen[i]) + shift == heads[i] for i in words) / len(words)

    words = [i for i, head in enumerate(heads) if head]
    counted = sum(int(best[i]) + 1 == heads[i] for i in words)
    mistakes = {
        "the root has no head word, so it does not count as a word here.": counted / len(heads),
        "head words are counted from 1, and rows and columns from 0.": fraction(best, 0, words),
        "this reads the columns. Row i has the weights of word i.": fraction(column, 1, words),
        "this is a number of words. Divide it by the number of words with a head word.": counted,
        "this is the fraction of the words for which the head is wrong.": 1 - fraction(best, 1, words),
        "this is a percentage. Return a fraction.": 100 * fraction(best, 1, words),
    }
    found = call(answer, weights, heads)
    hints = {hint: [wrong] for hint, wrong in mistakes.items()}
    compare_numbers(found, [fraction(best, 1, words)], hints, ["the fraction"])
    return "this is how slides 22 to 24 judge an attention head."


def leaking(tokens: Tensor) -> Tensor:
    """Return logits (B, T, 10) that name the next token, if the model can see it, and else the current token."""
    known = torch.cat([tokens[:, 1:], tokens[:, -1:]], 1)
    return 5.0 * F.one_hot(known, 10)


@exercise
def honest_loss(answer: object) -> str:
    """Loss of a model that gets only the tokens before the one that it predicts."""
    tokens = torch.randint(10, (4, 9))
    table = torch.randn(10, 10)

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, -2), targets.flatten())

    def between(first: int, last: int) -> Tensor:
        return loss(torch.stack(steps[first - 1 : last], 1), tokens[:, first : last + 1])

    for model in (lambda tokens: table[tokens], leaking):
        steps = [model(tokens[:, :t])[:, -1] for t in range(1, 9)]
        right = between(1, 8)
        early = loss(torch.stack([model(tokens[:, : t + 1])[:, -1] for t in range(1, 9)], 1), tokens[:, 1:])
        mistakes = {
            "the model reads the whole text at once, so it sees the token that it predicts.": (
                loss(model(tokens)[:, :-1], tokens[:, 1:])
            ),
            "the model reads all tokens but the last at once, so it sees most of the tokens that it predicts.": (
                loss(model(tokens[:, :-1]), tokens[:, 1:])
            ),
            "the loss begins at t = 2. With t = 1, the model reads only the first token and predicts the second.": (
                between(2, 8)
            ),
            "the loss ends too early: with t = T - 1, the model predicts the last token.": between(1, 7),
            "the loss begins at t = 2 and ends too early. The values of t are 1 to T - 1.": between(2, 7),
            "the last token that the model reads is the token that it must predict.": early,
            "the logits are compared with the token that the model has just read.": (
                loss(torch.stack(steps, 1), tokens[:, :-1])
            ),
            "this is a sum. Take the mean over the positions.": 8 * right,
            "the logits of the first position are used. The last position predicts the next token.": loss(
                torch.stack([model(tokens[:, :t])[:, 0] for t in range(1, 9)], 1), tokens[:, 1:]
            ),
        }
        hints = {hint: [float(wrong)] for hint, wrong in mistakes.items()}
        compare_numbers(call(answer, model, tokens), [float(right)], hints, ["the loss"], tolerance=1e-4)
    return "a broken mask cannot lower this loss, because the model never reads the token that it predicts."

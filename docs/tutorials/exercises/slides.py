"""Checks of the exercises in the tutorial about the slides."""

from __future__ import annotations

from math import ceil
from statistics import mean, pvariance, variance

import torch
import torch.nn.functional as F
from torch import Tensor

from manyheads.models.squeeze_excitation import SqueezeExcitation

from .checking import Mistake, call, choice, compare, compare_numbers, exercise, kind, number

STUDENT_T = 2.776  # 97.5% quantile of Student's t for four degrees of freedom: two groups of three seeds
ONE, TAUGHT, CONTROL, BOTH = (
    "one token, no teacher",
    "one token, teacher",
    "two tokens, no teacher",
    "two tokens, teacher",
)


@exercise
def token_counts(answer: object) -> str:
    """Tokens of a ViT with patches of 16 pixels at 224 and 384 pixels, and of a DeiT at 224 pixels."""
    mistakes = {
        "the class token is missing.": (196, 576, None),
        "an image has patches in rows and columns: 14 x 14 for 224 pixels.": (15, 25, None),
        "the first two numbers are right. A DeiT has a distillation token, too.": (197, 577, 197),
        "the distillation token does not replace the class token.": (197, 577, 196),
        "these are pixels. A patch of 16 x 16 pixels is one token.": (224 * 224, 384 * 384, None),
        "a patch is one token, and its colors are parts of the same vector.": (589, 1729, None),
        "a ViT has no distillation token. Only a DeiT has one.": (198, 578, None),
    }
    compare_numbers(answer, (197, 577, 198), mistakes, ["ViT, 224 pixels", "ViT, 384 pixels", "DeiT, 224 pixels"])
    return "the number of attention weights grows with its square: from 38,809 to 332,929."


@exercise
def layers(answer: object) -> str:
    """Number of convolutions that bring a word to a position `distance` places later."""
    cases = ((1, 3), (6, 3), (40, 3), (7, 5), (40, 5), (9, 9))
    names = [f"the number of layers for distance {distance} and width {width}" for distance, width in cases]
    found = [number(call(answer, *case), name) for case, name in zip(cases, names, strict=True)]
    reach = [(distance, (width - 1) // 2) for distance, width in cases]
    mistakes: dict[str, list[float | None]] = {
        "a layer reaches (width - 1) / 2 places to the left. The other half is on the right.": [
            ceil(distance / (2 * side)) for distance, side in reach
        ],
        "a layer of this width reaches (width - 1) / 2 places to the left, and not width places.": [
            ceil(distance / width) for distance, width in cases
        ],
        "round up. A part of a layer is not enough, and the word must be reached.": [
            distance // side for distance, side in reach
        ],
        "if the reach divides the distance, no further layer is needed.": [
            distance // side + 1 for distance, side in reach
        ],
        "each layer reaches further than one place if the width is more than 3.": [distance for distance, _ in cases],
        "the result is not a whole number. Round up.": [distance / side for distance, side in reach],
    }
    compare_numbers(found, [ceil(distance / side) for distance, side in reach], mistakes, names)
    return "an attention layer needs one layer for any distance."


@exercise
def patches(answer: object) -> str:
    """Patches of an image (C, Y, X) as rows, in the order of the text of a page."""
    image, size = torch.randn(3, 6, 8), 2
    cut = image.unfold(1, size, size).unfold(2, size, size)  # (C, rows, columns, size, size)
    mistakes = {
        "a reshape cuts no squares: it takes pixels from the same row. Split both axes first, then permute.": (
            image.reshape(12, 12)
        ),
        "these are the columns of the image, one after the other. Take a row of patches first.": (
            cut.permute(2, 1, 0, 3, 4).reshape(12, 12)
        ),
        "the colors come last within a patch. F.unfold puts them first, as the weights of a convolution do.": (
            cut.permute(1, 2, 3, 4, 0).reshape(12, 12)
        ),
        "each patch is mirrored at its diagonal: rows and columns of a patch are exchanged.": (
            cut.permute(1, 2, 0, 4, 3).reshape(12, 12)
        ),
        "this has a column for each patch. Transpose it.": cut.permute(0, 3, 4, 1, 2).reshape(12, 12),
        "the patches are right, but each must be one row of C * size * size numbers.": cut.permute(1, 2, 0, 3, 4),
    }
    compare(call(answer, image, size), F.unfold(image[None], size, stride=size)[0].T, mistakes)
    return "these rows, times a matrix, are the tokens of a ViT."


@exercise
def squeeze_excite(answer: object) -> str:
    """Squeeze and excitation of x (B, C, Y, X) with the matrices W_1 and W_2 and their biases."""
    block = SqueezeExcitation(32).requires_grad_(False)
    squeeze, excite = block.squeeze, block.excite
    for layer in (squeeze, excite):
        torch.nn.init.normal_(layer.weight)
        torch.nn.init.normal_(layer.bias)
    x = torch.randn(2, 32, 4, 5)

    def scores(means: Tensor) -> Tensor:
        result: Tensor = excite(squeeze(means).relu())
        return result

    def without_biases(*, first: bool = False, second: bool = False) -> Tensor:
        hidden = squeeze(means) - (squeeze.bias if first else 0)
        return scaled((excite(hidden.relu()) - (excite.bias if second else 0)).sigmoid())

    def scaled(multiplier: Tensor) -> Tensor:
        return multiplier[..., None, None] * x

    means = x.mean((2, 3))
    multiplier = scores(means).sigmoid()
    mistakes = {
        "these are the multipliers. Multiply the channels by them.": multiplier,
        "these are the multipliers, in the right shape. Multiply the channels by them.": multiplier[..., None, None],
        "the channels compete in a softmax. A sigmoid gives each of them a factor from 0 to 1.": (
            scaled(scores(means).softmax(-1))
        ),
        "the sigmoid is missing.": scaled(scores(means)),
        "the ReLU between the two layers is missing.": scaled(excite(squeeze(means)).sigmoid()),
        "the hidden units have a tanh. They need a ReLU.": scaled(excite(squeeze(means).tanh()).sigmoid()),
        "the hidden units have a sigmoid. They need a ReLU.": scaled(excite(squeeze(means).sigmoid()).sigmoid()),
        "the multipliers come from a tanh, which can be negative. They need a sigmoid.": scaled(scores(means).tanh()),
        "the multipliers come from a ReLU. They need a sigmoid.": scaled(scores(means).relu()),
        "the biases b_1 and b_2 are missing.": without_biases(first=True, second=True),
        "the bias b_1 of the first layer is missing.": without_biases(first=True),
        "the bias b_2 of the second layer is missing.": without_biases(second=True),
        "the squeeze is a mean over the pixels, not their maximum.": scaled(scores(x.amax((2, 3))).sigmoid()),
        "the squeeze is a mean over the pixels, not their sum.": scaled(scores(x.sum((2, 3))).sigmoid()),
        "the mean runs over the images, too. Each image has its own multipliers.": (
            scaled(scores(x.mean((0, 2, 3))).sigmoid())
        ),
        "the multipliers are added. Multiply by them.": multiplier[..., None, None] + x,
    }
    inputs = squeeze.weight, squeeze.bias, excite.weight, excite.bias
    compare(call(answer, x, *inputs), block(x), mistakes)
    return "the result equals the class SqueezeExcitation."


@exercise
def distillation_loss(answer: object) -> str:
    """Loss of a DeiT with two tokens and the labels of a teacher."""
    Z_class, Z_token, teacher = 2 * torch.randn(3, 6, 4)
    y = torch.tensor([0, 3, 1, 2, 2, 0])
    y_t = teacher.argmax(-1)
    true, taught = F.cross_entropy(Z_class, y), F.cross_entropy(Z_token, y_t)
    normal = [F.cross_entropy(Z.softmax(-1), labels) for Z, labels in ((Z_class, y), (Z_token, y_t))]
    mistakes = {
        "this is the sum. Take half of each term.": true + taught,
        "both terms use the class token. The distillation token learns the teacher's labels.": (
            (true + F.cross_entropy(Z_class, y_t)) / 2
        ),
        "the tokens are exchanged: the class token learns the true labels.": (
            (F.cross_entropy(Z_token, y) + F.cross_entropy(Z_class, y_t)) / 2
        ),
        "both tokens learn the true labels. The teacher is missing.": (true + F.cross_entropy(Z_token, y)) / 2,
        "the teacher's probabilities are used. The label is its largest output.": (
            (true + F.cross_entropy(Z_token, teacher.softmax(-1))) / 2
        ),
        "F.cross_entropy takes logits. It applies the softmax itself.": (normal[0] + normal[1]) / 2,
        "F.cross_entropy takes logits, also for the class token.": (normal[0] + taught) / 2,
        "F.cross_entropy takes logits, also for the distillation token.": (true + normal[1]) / 2,
        "the two outputs are added first. Each token has its own loss.": (
            (F.cross_entropy(Z_class + Z_token, y) + F.cross_entropy(Z_class + Z_token, y_t)) / 2
        ),
        "the logits of the two tokens are averaged first. Each token has its own loss.": (
            (F.cross_entropy((Z_class + Z_token) / 2, y) + F.cross_entropy((Z_class + Z_token) / 2, y_t)) / 2
        ),
        "the logits of the teacher are the targets. Its label is the index of the largest one.": (
            (true + F.cross_entropy(Z_token, teacher)) / 2
        ),
        "this is a sum over the images. Take the mean over them.": len(y) * (true + taught) / 2,
        "this is a sum over the images and over the terms. Take the mean over the images, and half of each term.": (
            len(y) * (true + taught)
        ),
        "the distillation term is missing.": true / 2,
        "the distillation term is missing, and the other term needs the factor 1/2.": true,
    }
    hints = {hint: [float(wrong)] for hint, wrong in mistakes.items()}
    found = call(answer, Z_class, Z_token, y, teacher)
    compare_numbers(found, [float(true + taught) / 2], hints, ["the loss"], tolerance=1e-4)
    return "the true labels stay in the loss, and the teacher's labels have another token."


def _effect(first: list[float], second: list[float]) -> tuple[float, float]:
    """Return the difference of two means and its 95% margin."""
    return mean(first) - mean(second), STUDENT_T * ((variance(first) + variance(second)) / 3) ** 0.5


@exercise
def teacher_effect(answer: object) -> str:
    """Difference that a teacher makes for a DeiT with two tokens, its margin, and a verdict."""
    cases = (  # accuracies of the four kinds of model, and the right verdict
        ([0.81, 0.80, 0.79], [0.80, 0.76, 0.81], [0.90, 0.89, 0.92], [0.90, 0.92, 0.91], "not decided"),
        ([0.81, 0.80, 0.79], [0.86, 0.85, 0.87], [0.80, 0.82, 0.80], [0.90, 0.89, 0.92], "more"),
        ([0.70, 0.74, 0.72], [0.75, 0.75, 0.78], [0.82, 0.84, 0.83], [0.76, 0.75, 0.77], "less"),
    )
    for *scores, right in cases:
        accuracies = dict(zip((ONE, TAUGHT, CONTROL, BOTH), map(list, scores), strict=True))
        found = call(answer, accuracies)
        if not isinstance(found, tuple | list) or len(found) != 3:
            raise Mistake(f"expected a difference, a margin and a verdict, found {kind(found)}.")
        difference, margin = _effect(accuracies[BOTH], accuracies[CONTROL])
        spread = (variance(accuracies[BOTH]) + variance(accuracies[CONTROL])) ** 0.5
        population = (pvariance(accuracies[BOTH]) + pvariance(accuracies[CONTROL])) ** 0.5
        mistakes = {
            "the row without a second token is no control: the difference contains the effect of the second token.": (
                mean(accuracies[BOTH]) - mean(accuracies[ONE]),
                None,
            ),
            "compare models that differ only in the teacher. These two differ in the tokens.": (
                mean(accuracies[BOTH]) - mean(accuracies[TAUGHT]),
                None,
            ),
            "these models have no distillation token. Compare the two rows with two tokens.": (
                mean(accuracies[TAUGHT]) - mean(accuracies[ONE]),
                None,
            ),
            "the sign is wrong. Subtract the control from the model with a teacher.": (-difference, None),
            "the margin is too wide: the variance of a mean of three seeds is a third of the variance.": (
                difference,
                STUDENT_T * spread,
            ),
            "the sum of the variances is divided by 6. Each mean has three seeds, so divide it by 3.": (
                difference,
                STUDENT_T * spread / 6**0.5,
            ),
            "the margin is one standard error. Multiply it by 2.776.": (difference, spread / 3**0.5),
            "the margin has the factor 1.96, which needs many seeds. For two groups of three, it is 2.776.": (
                difference,
                1.96 * spread / 3**0.5,
            ),
            "the variance of a sample divides by n - 1, so here by 2. Use statistics.variance.": (
                difference,
                STUDENT_T * population / 3**0.5,
            ),
        }
        compare_numbers(list(found[:2]), (difference, margin), mistakes, ["the difference", "the margin"], 1e-5)
        verdict = choice(found[2], ("more", "less", "not decided"))
        if verdict != right and verdict != "not decided" and abs(difference) < margin:
            raise Mistake(f"the difference is smaller than its margin, so {verdict!r} is not shown.")
        if verdict != right:
            raise Mistake(f"for a difference of {difference:.3f} and a margin of {margin:.3f}, {verdict!r} is wrong.")
    return "without the control, the effect of the second token would look like an effect of the teacher."

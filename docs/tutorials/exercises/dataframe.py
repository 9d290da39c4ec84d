"""Checks of the exercises in the tutorial "From a data frame to a deployed model"."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from .checking import Mistake, call, choice, compare_numbers, exercise, kind, shorten

MATRIX = [[50, 8, 2], [12, 30, 3], [1, 4, 40]]  # rows: negative, neutral, positive texts; columns: the predictions


@exercise
def baseline(answer: object) -> str:
    """Accuracy and mean recall of a model that predicts "positive" for 70 positive and 30 negative texts."""
    mistakes: dict[str, tuple[float | None, ...]] = {
        "these are percentages. Write fractions.": (70, 50),
        "the model is right for all positive texts, so its accuracy is more than 0.5.": (0.5, None),
        "the recall of the negative texts is 0. Take the mean of both recalls.": (0.7, 1.0),
        "the mean recall gives both labels the same weight, whatever their numbers of texts.": (
            0.7,
            0.7,
        ),
        "the model never predicts the 30 negative texts.": (0.3, None),
        "the model finds all positive texts. Their recall is 1.": (0.7, 0.0),
    }
    compare_numbers(answer, (0.7, 0.5), mistakes, ["the accuracy", "the mean recall"], tolerance=1e-3)
    return "compare an accuracy with the accuracy of such a model before you call it good."


@exercise
def confusion_matrix(answer: object) -> str:
    """Recall and precision of the neutral texts, and the most frequent confusion, of MATRIX."""
    if not isinstance(answer, list | tuple) or len(answer) != 3:
        raise Mistake(f"expected a list of a recall, a precision and a confusion, found {kind(answer)}.")
    rows, columns = [sum(row) for row in MATRIX], [sum(column) for column in zip(*MATRIX, strict=True)]
    right, total = MATRIX[1][1], sum(rows)
    recall, precision = right / rows[1], right / columns[1]
    accuracy = (MATRIX[0][0] + right + MATRIX[2][2]) / total
    mistakes: dict[str, tuple[float | None, ...]] = {
        "recall and precision are exchanged. The recall divides by the sum of a row, the true texts.": (
            precision,
            recall,
        ),
        "these are percentages. Write fractions.": (100 * recall, 100 * precision),
        "the recall divides by the number of neutral texts, not by the number of all texts.": (right / total, None),
        "the precision divides by the number of predictions, not by the number of all texts.": (None, right / total),
        "this is the accuracy for all labels. Read only the row and the column of the neutral texts.": (accuracy, None),
        "this is another label: the order is negative, neutral, positive.": (MATRIX[0][0] / rows[0], None),
        "this is another label: neutral is the second one.": (MATRIX[2][2] / rows[2], None),
    }
    compare_numbers(list(answer[:2]), (recall, precision), mistakes, ["the recall", "the precision"], tolerance=5e-3)
    labels = ("negative", "neutral", "positive")
    pair = choice(answer[2], tuple(f"{true} as {said}" for true in labels for said in labels))
    if pair == "negative as neutral":
        raise Mistake(
            "8 negative texts were called neutral, but a larger number is outside the diagonal. Rows are true."
        )
    if pair != "neutral as negative":
        raise Mistake(f"{pair!r} is not the largest number outside the diagonal.")
    return "12 of 45 neutral texts were called negative."


@exercise
def honest_split(answer: object) -> str:
    """Training and test rows without a common text, for a data frame with repeated texts."""
    words = [f"{word} {kind} {n % 30}" for n in range(60) for word in ("fine", "poor") for kind in ("film", "play")]
    labels = ["pos" if "fine" in text else "neg" for text in words]
    data = pd.DataFrame({"text": words, "label": labels})
    data = data.sort_values("label", ignore_index=True)
    parts = call(answer, data.copy())
    if not isinstance(parts, tuple | list) or len(parts) != 2:
        raise Mistake(f"expected two data frames, found {kind(parts)}.")
    for part in parts:
        if not isinstance(part, pd.DataFrame):
            raise Mistake(f"expected a data frame with the columns text and label, found {kind(part)}.")
        for column in data:
            if list(part).count(column) != 1:
                raise Mistake(f"expected one column {column}, found the columns {shorten(repr(list(part)))}.")
    train, test = parts
    common = set(train["text"]) & set(test["text"])
    if common:
        raise Mistake(
            f"{len(common)} texts are in both parts, so the test rewards learning by heart. "
            "Divide the different texts, and not the rows."
        )
    if len(train) + len(test) < len(data):
        raise Mistake(
            f"{len(data) - len(train) - len(test)} rows are lost. Keep all rows, also those with equal texts."
        )
    if len(train) + len(test) > len(data):
        raise Mistake("there are more rows than before.")
    rows = pd.concat([train, test])
    invented = Counter(zip(rows["text"], rows["label"], strict=True)) - Counter(zip(words, labels, strict=True))
    if invented:
        raise Mistake(
            "some rows are not in the data, or not that often, such as "
            f"{shorten(repr(min(invented, key=str)))}. Keep each row as it is."
        )
    fraction = len(test) / len(data)
    if not 0.15 <= fraction <= 0.25:
        raise Mistake(f"the test has {fraction:.0%} of the rows, expected about 20%.")
    if test["label"].nunique() < 2 or train["label"].nunique() < 2:
        raise Mistake("one part has only one label, because the rows are sorted by label. Shuffle the texts first.")
    return f"{len(train)} rows for training and {len(test)} for the test have no text in common."

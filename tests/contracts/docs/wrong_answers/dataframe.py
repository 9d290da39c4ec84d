"""Wrong answers to the exercises of the data frame: changes of the solution, and a part of the hint that they get."""

WRONG = {
    "baseline": [
        ("[0.7, 0.5]", "[70, 50]", "Write fractions"),
        ("[0.7, 0.5]", "[0.7, 0.7]", "same weight"),
        ("[0.7, 0.5]", "[0.7, 1.0]", "recall of the negative texts is 0"),
        ("[0.7, 0.5]", "[0.5, 0.5]", "more than 0.5"),
    ],
    "confusion_matrix": [
        ("[recall, precision,", "[precision, recall,", "exchanged"),
        ("neutral as negative", "negative as neutral", "Rows are true"),
        ("[recall, precision,", "[100 * recall, 100 * precision,", "Write fractions"),
        ('matrix["neutral"].sum()', "matrix.sum().sum()", "precision divides by the number of predictions"),
        ("neutral as negative", "negative as positive", "not the largest"),
    ],
    "honest_split": [
        (
            'data["text"].isin(texts)',
            "data.index.isin(data.sample(frac=0.2, random_state=1).index)",
            "are in both parts",
        ),
        ("data[~in_test], data[in_test]", "data[~in_test].drop_duplicates(), data[in_test]", "rows are lost"),
        ("frac=0.2", "frac=0.5", "expected about 20%"),
        (".sample(frac=0.2, random_state=1)", ".head(24)", "Shuffle the texts first"),
    ],
}

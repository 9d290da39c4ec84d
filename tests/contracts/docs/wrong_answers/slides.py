"""Wrong answers to the exercises of the slides: changes of the solution, and a part of the hint that they get."""

WRONG = {
    "token_counts": [
        ("[14 * 14 + 1, 24 * 24 + 1, 14 * 14 + 2]", "[196, 576, 198]", "class token is missing"),
        ("14 * 14 + 2", "14 * 14 + 1", "A DeiT has a distillation token"),
        ("[14 * 14 + 1, 24 * 24 + 1, 14 * 14 + 2]", "[198, 578, 198]", "Only a DeiT has one"),
        ("[14 * 14 + 1, 24 * 24 + 1, 14 * 14 + 2]", "[15, 25, 16]", "rows and columns"),
    ],
    "layers": [
        ("(width - 1) // 2", "width - 1", "other half is on the right"),
        ("-(-distance // left)", "distance // left", "round up"),
        ("(width - 1) // 2", "1", "reaches further than one place"),
        ("-(-distance // left)", "distance / left", "not a whole number"),
        ("(width - 1) // 2", "width", "not width places"),
        ("-(-distance // left)", "float('nan')", "the number of layers for distance 1 and width 3"),
    ],
    "patches": [
        ("split.permute(1, 3, 0, 2, 4)", "image", "cuts no squares"),
        ("(1, 3, 0, 2, 4)", "(3, 1, 0, 2, 4)", "Take a row of patches first"),
        ("(1, 3, 0, 2, 4)", "(1, 3, 2, 4, 0)", "colors come last"),
        (".reshape(-1, C * size * size)", "", "one row of C * size * size numbers"),
        ("C * size * size)", "C * size * size).T", "Transpose it"),
    ],
    "squeeze_excite": [
        (".sigmoid()", ".softmax(-1)", "compete in a softmax"),
        (".relu()", "", "ReLU between the two layers"),
        ("x.mean((2, 3))", "x.amax((2, 3))", "not their maximum"),
        (" * x", "", "Multiply the channels by them"),
        (".sigmoid()", "", "sigmoid is missing"),
        (".relu()", ".tanh()", "hidden units have a tanh"),
        (".sigmoid()", ".tanh()", "They need a sigmoid"),
        (", b_1)", ")", "bias b_1 of the first layer is missing"),
        (", b_2).", ").", "bias b_2 of the second layer is missing"),
    ],
    "distillation_loss": [
        ("0.5 * ", "", "Take half of each term"),
        ("(Z_token, y_t)", "(Z_class, y_t)", "both terms use the class token"),
        ("(Z_token, y_t)", "(Z_token, teacher.softmax(-1))", "The label is its largest output"),
        ("(Z_class, y)", "(Z_class.softmax(-1), y)", "F.cross_entropy takes logits"),
        (" + 0.5 * F.cross_entropy(Z_token, y_t)", "", "distillation term is missing"),
        ("(Z_token, y_t)", "(Z_token, teacher)", "index of the largest one"),
        (
            "0.5 * F.cross_entropy(Z_class, y) + 0.5 * F.cross_entropy(Z_token, y_t)",
            "0.5 * sum(F.cross_entropy((Z_class + Z_token) / 2, labels) for labels in (y, y_t))",
            "averaged first",
        ),
        (
            "F.cross_entropy(Z_class, y) + 0.5 * F.cross_entropy(Z_token, y_t)",
            "sum(F.cross_entropy(Z, t, reduction='sum') for Z, t in ((Z_class, y), (Z_token, y_t)))",
            "Take the mean over them",
        ),
    ],
    "teacher_effect": [
        ("two tokens, no teacher", "one token, no teacher", "effect of the second token"),
        ("two tokens, no teacher", "one token, teacher", "differ only in the teacher"),
        (" / 3", "", "a third of the variance"),
        (" / 3", " / 6", "divided by 6"),
        ("2.776", "1.96", "needs many seeds"),
        ("mean(taught) - mean(control)", "mean(control) - mean(taught)", "sign is wrong"),
        ("abs(difference) <= margin", "difference == 0", "is not shown"),
    ],
}

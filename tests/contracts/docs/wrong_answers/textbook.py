"""Wrong answers to the exercises of the textbook: changes of the solution, and a part of the hint that they get."""

WRONG = {
    "weights": [
        ("[1 / 6, 1 / 6, 1 / 6, 1 / 2]", "[1, 1, 1, 3]", "Divide them by their sum"),
        ("[1 / 6, 1 / 6, 1 / 6, 1 / 2]", "[0.0, 0.0, 0.0, 1.0]", "Take the exponentials first"),
        ("[1 / 6, 1 / 6, 1 / 6, 1 / 2]", "[0.25] * 4", "all equal"),
    ],
    "attention": [
        (" / d**0.5", "", "not divided by the root of d"),
        ("d**0.5", "d", "Divide them by its root"),
        ("softmax(-1)", "softmax(0)", "runs over the queries"),
        ("Q.shape[-1]", "K.shape[0]", "a number of words"),
        (
            "(Q @ K.T / d**0.5).softmax(-1)",
            "(Q @ K.T / d**0.5).exp() / (Q @ K.T / d**0.5).exp().sum()",
            "all weights together",
        ),
        (".softmax(-1) @ V", ".softmax(-1)", "Multiply them by the values"),
    ],
    "without_padding": [
        ('float("-inf")', "0", "a score of 0 still gets a weight"),
        ("scores[:, length:]", "scores[length:]", "Hide columns, not rows"),
        ("[:, length:]", "[:, :length]", "hides the words"),
        (
            "return scores.softmax(-1) @ V",
            "w = (Q @ K.T / Q.shape[-1] ** 0.5).softmax(-1); w[:, length:] = 0; return w @ V",
            "the mask comes after the softmax",
        ),
        ("length:", "length + 1:", "first position of the padding is still visible"),
    ],
    "heads": [
        ("(d // H) ** 0.5", "d ** 0.5", "the width of a head"),
        (" @ W_O\n", "\n", "W_O is missing"),
        (".view(N, H, d // H).transpose(0, 1)", ".reshape(H, N, d // H)", "Split each row into H parts"),
        (".view(N, H, d // H).transpose(0, 1)", ".view(N, d // H, H).permute(2, 0, 1)", "every H-th column"),
    ],
    "parameters": [
        ("(2 * d)", "d", "one of the two norms is missing"),
        ("wide = H * head_width", "wide = d", "not d"),
        ("(d * dense + dense) + (dense * d + d)", "2 * d * dense", "biases of the feed-forward network"),
        ("3 * (d * wide + wide) + (wide * d + d)", "3 * (d * wide + wide)", "output matrix of the attention"),
    ],
    "padding_proof_model": [
        (", masked=True", "", "of the attention goes to padding"),
        ("textbook", "corrected", "position embeddings"),
        (".eval()", "", "training mode"),
        ("masked=True", 'masked=True, pooling="mean"', "takes the mean"),
        ("masked=True", "masked=True, layers=2", "Change no sizes"),
    ],
}

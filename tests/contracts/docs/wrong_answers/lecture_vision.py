"""Wrong answers to the exercises of the lecture on vision: changes of the solution, and a part of their hint."""

WRONG = {
    "map_sizes": [
        ("[(8 * 14 * 14) ** 2, (8 * 14 * 14) * (8 * 7 * 7)]", "[1568, 392]", "Multiply the two numbers"),
        ("(8 * 14 * 14) ** 2", "8 * (14 * 14) ** 2", "positions of all frames"),
        ("(8 * 14 * 14) * (8 * 7 * 7)", "(8 * 7 * 7) ** 2", "queries are not pooled"),
        ("(8 * 7 * 7)", "(4 * 7 * 7)", "does not join frames"),
    ],
    "non_local": [
        ("scores.softmax(-1) @ (W_g @ x).T", "W_g @ x @ scores.softmax(-1).T", "omit the last transpose"),
        ("softmax(-1)", "softmax(0)", "runs over the queries"),
        ("(W_phi @ x)\n", "(W_phi @ x) / 2\n", "does not divide its scores"),
        (" @ (W_g @ x).T", " @ x.T", "Multiply x by W_g first"),
        ("(W_theta @ x).T @ (W_phi @ x)", "(W_phi @ x).T @ (W_theta @ x)", "exchanged"),
    ],
    "layer_parameters": [
        ("window * window * channels", "window * channels", "a matrix for each pixel of the window"),
        (" + 2 * window * (width // 2)", "", "row and column vectors"),
        ("3 * channels", "3 * window**2 * channels", "the same for all pixels"),
        ("(width // 2)", "width", "width / 2 numbers each"),
        ("convolution, attention\n", "attention, convolution\n", "the order is convolution"),
        ("2 * window * (width // 2)", "window * window * width", "no vector for each pixel"),
    ],
    "shifted_scores": [
        ("p[None, :] - p[:, None]", "p[:, None] - p[None, :]", "opposite side"),
        ("-alpha", "alpha", "The sign is wrong"),
        (".square().sum(-1)", ".float().norm(dim=-1)", "not squared"),
        ("[dy, dx]", "[dx, dy]", "exchanged in the shift"),
        ("-alpha * ", "-", "alpha is missing"),
    ],
    "center": [
        (
            " - y[:, None]\n    dx = (weights.sum(2) * x).sum(2) - x[None, :]",
            "\n    dx = (weights.sum(2) * x).sum(2)",
            "Subtract the place of the query",
        ),
        ("[dy.mean(), dx.mean()]", "[dx.mean(), dy.mean()]", "order is (dy, dx)"),
        ("[dy.mean(), dx.mean()]", "[-dy.mean(), -dx.mean()]", "sign is wrong"),
        ("[dy.mean(), dx.mean()]", "[dy.sum(), dx.sum()]", "sum over the queries"),
        ("[dy.mean(), dx.mean()])", "[dy, dx], -1)", "one shift for each query"),
    ],
    "same_attention": [
        ("[4.0, 5.0, 6.0], [7.0, 8.0, 1.0]", "[4.0, 1.0, 6.0], [7.0, 8.0, 5.0]", "center has changed"),
        ("8.0, 1.0]", "8.0, 2.0]", "other values"),
        ("[[9.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 1.0]]", "window.tolist()", "same order"),
    ],
}

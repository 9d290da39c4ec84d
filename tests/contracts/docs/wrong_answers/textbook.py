"""Wrong answers to the exercises of the textbook: changes of the solution, and a part of the hint that they get."""

HIDE = 'scores[:, length:] = float("-inf")'
SCORES = f"scores = Q @ K.T / Q.shape[-1] ** 0.5\n    {HIDE}"
SPLIT = ".view(N, H, d // H).transpose(0, 1)"
HEADS = f"Q, K, V = ((x @ W){SPLIT} for W in (W_Q, W_K, W_V))\n"
WRONG = {
    "weights": [
        ("[1 / 6, 1 / 6, 1 / 6, 1 / 2]", "[1, 1, 1, 3]", "Divide them by their sum"),
        ("[1 / 6, 1 / 6, 1 / 6, 1 / 2]", "[0.0, 0.0, 0.0, 1.0]", "Take the exponentials first"),
        ("[1 / 6, 1 / 6, 1 / 6, 1 / 2]", "[0.25] * 4", "all equal"),
        ("[1 / 6, 1 / 6, 1 / 6, 1 / 2]", "[1 / 3, 1 / 3, 1 / 3, 1]", "these numbers add up to 2"),
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
        (
            "return (Q @ K.T / d**0.5).softmax(-1) @ V",
            "from manyheads.core.attention import attend; return attend(*(x[None, None] for x in (Q, K, V)))[0, 0]",
            "your function calls attend",
        ),
        (
            "(Q @ K.T / d**0.5).softmax(-1) @ V",
            "torch.nn.functional.scaled_dot_product_attention(Q, K, V)",
            "calls scaled_dot_product_attention",
        ),
    ],
    "without_padding": [
        ('float("-inf")', "0", "A score of 0 still gets a weight"),
        ("scores[:, length:]", "scores[length:]", "Hide columns, not rows"),
        ("[:, length:]", "[:, :length]", "hides the words"),
        (
            "return scores.softmax(-1) @ V",
            "w = (Q @ K.T / Q.shape[-1] ** 0.5).softmax(-1); w[:, length:] = 0; return w @ V",
            "Hide the scores of the padding before the softmax",
        ),
        (HIDE, "V[length:] = 0", "Hide the scores of the padding before the softmax"),
        (SCORES, "K[length:] = 0; scores = Q @ K.T / 8**0.5", "a key of zeros has such scores, too"),
        (
            SCORES,
            "K[length:] = 0; V[length:] = 0; scores = Q @ K.T / 8**0.5",
            "scores and the values of the padding are 0",
        ),
        (
            HIDE,
            'scores += (torch.arange(6) >= length) * float("-inf")',
            "The first NaN comes from a product of 0 and infinity",
        ),
        ("scores[:, length:]", "scores[:]", "The first NaN comes from a softmax of scores that are all minus infinity"),
        ("return scores.softmax(-1) @ V", "return scores.softmax(-1)[:length] @ V", "rows of the padding are missing"),
        ("length:", "length + 1:", "first position of the padding is still visible"),
    ],
    "heads": [
        ("(d // H) ** 0.5", "d ** 0.5", "the width of a head"),
        (" @ W_O\n", "\n", "W_O is missing"),
        (SPLIT, ".reshape(H, N, d // H)", "Split each row into H parts"),
        (SPLIT, ".view(N, d // H, H).permute(2, 0, 1)", "every H-th column"),
        (SPLIT, ".view(N, H, d // H)", "Exchange words and heads before the scores"),
        ("Z.transpose(0, 1).reshape", "Z.reshape", "before the last reshape"),
        ("Z.transpose(0, 1)", "Z.flip(0).transpose(0, 1)", "reversed order"),
        ("(x @ W)", "(x @ W.T)", "W_Q, W_K and W_V are transposed"),
        ("@ W_O\n", "@ W_O.T\n", "W_O is transposed"),
        ("    N, d", "    W_Q, W_K, W_V, W_O = W_Q.T, W_K.T, W_V.T, W_O.T; N, d", "all four matrices are transposed"),
        ("W in (W_Q, W_K, W_V)", "W in (W_K, W_Q, W_V)", "queries and keys are exchanged"),
        ("softmax(-1)", "softmax(-2)", "runs over the queries"),
        (
            HEADS,
            "Q, K, V = ((x @ W).reshape(H, N, d // H) for W in (W_Q, W_K, W_V))\n"
            "    return ((Q @ K.mT / (d // H) ** 0.5).softmax(-1) @ V).reshape(N, d) @ W_O\n",
            "put the words in front again",
        ),
        (
            HEADS,
            "Q, K, V = ((x @ W).view(N, H, d // H) for W in (W_Q, W_K, W_V))\n"
            "    return ((Q @ K.mT / (d // H) ** 0.5).softmax(-1) @ V).reshape(N, d) @ W_O\n",
            "the heads of one word look at each other",
        ),
    ],
    "parameters": [
        ("(2 * d)", "d", "one of the two norms is missing"),
        ("wide = H * head_width", "wide = d", "not d"),
        ("(d * dense + dense) + (dense * d + d)", "2 * d * dense", "biases of the feed-forward network"),
        ("3 * (d * wide + wide) + (wide * d + d)", "3 * (d * wide + wide)", "output matrix of the attention"),
        (
            "(d * dense + dense) + (dense * d + d)",
            "d * dense + dense",
            "The second, from dense to d numbers, is missing",
        ),
        ("(d * dense + dense) + (dense * d + d)", "dense * d + d", "The first, from d to dense numbers, is missing"),
        ("(d * dense + dense) + (dense * d + d)", "2 * (d * d + d)", "not from d to d"),
        ("(d * dense + dense) + (dense * d + d)", "(d * d + dense) + (d * d + d)", "not d x d"),
        ("(d * dense + dense) + (dense * d + d)", "0", "feed-forward network is missing"),
        ("(d * dense + dense)", "dense", "one of the two matrices of the feed-forward network"),
        ("3 * (d * wide + wide)", "2 * d * wide + 3 * wide", "one of the four matrices of the attention"),
        ("3 * (d * wide + wide)", "2 * (d * wide + wide)", "One is missing"),
        ("(wide * d + d)", "(wide * d + H * d)", "not for each head"),
    ],
    "padding_proof_model": [
        (", masked=True", "", "of the attention goes to padding"),
        ("textbook", "corrected", "position embeddings"),
        (".eval()", "", "training mode"),
        (
            ".eval()",
            ".eval(); torch.nn.init.constant_(model.encoder.blocks[0].attention.query.weight, torch.nan)",
            "contain NaN",
        ),
        ("masked=True", 'masked=True, pooling="mean"', "takes the mean"),
        ("masked=True", "masked=True, layers=2", "Change no sizes"),
    ],
}

"""Wrong answers to the exercises of the blog: changes of the solution, and a part of the hint that they get."""

WRONG = {
    "map_shapes": [
        ("(3, 8, 7, 9)]", "(3, 8, 9, 7)]", "the cross-attention: a row for each query"),
        ("(3, 8, 9, 9)", "(8, 3, 9, 9)", "the encoder: the order is batch"),
        ("(3, 8, 9, 9)", "(3, 8, 9, 512)", "width of the model, 512"),
        ("(3, 8, 7, 7)", "(3, 8, 7, 9)", "the decoder: the queries are the words that look"),
    ],
    "stable_softmax": [
        ("(scores - scores.max())", "scores", "Subtract the largest score"),
        ("scores - scores.max()", "scores / scores.max()", "Subtract a number instead"),
        (" / powers.sum()", "", "Divide by it after the subtraction"),
        ("(scores - scores.max()).exp()", "scores", "Take the exponentials first"),
        (
            "powers = (scores - scores.max()).exp()\n    return powers / powers.sum()",
            "return scores.exp()",
            "as in the blog",
        ),
    ],
    "encoding": [
        (
            "torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)",
            "torch.cat([angle.sin(), angle.cos()], 1)",
            "alternate",
        ),
        ("2 * i / width", "i / width", "The factor 2 is missing"),
        ("torch.arange(length)[", "torch.arange(1, length + 1)[", "counted from 0"),
        ("10_000", "1000", "base is 10,000"),
        ("[angle.sin(), angle.cos()]", "[angle.cos(), angle.sin()]", "exchanged"),
    ],
    "causal_scores": [
        ("triu(1)", "triu(0)", "hides the diagonal"),
        ("triu(1)", "tril(-1)", "transposed"),
        ('float("-inf")', "0", "a score of 0 is not hidden"),
        ('float("-inf"))', 'float("-inf")).softmax(-1)', "the softmax comes later"),
        ("triu(1)", "triu(2)", "one later word is still visible"),
        (
            'scores.masked_fill(later, float("-inf"))',
            'scores * (~later) + later * float("-inf")',
            "Zero times infinity",
        ),
    ],
    "broken_mask": [
        ("Mask()", "Mask(causal=True)", "hides the next digit everywhere"),
        ("Mask()", "None", "expected a Mask"),
        ("Mask()", "Mask(dense=torch.ones(8, 8).triu(2).bool())", "hides the next digit everywhere"),
        ("Mask()", "Mask(key_lengths=torch.tensor([5]))", "at 3 of 7 positions"),
    ],
    "greedy": [
        ("tokens[1:]", "tokens", "start token is not part"),
        ("        if token == end:\n            break\n", "", "does not stop at the end token"),
        ("next_scores(tokens)", "next_scores(tokens[-1:])", "needs all tokens so far"),
        ("len(tokens) <= limit", "True", "ignores the limit"),
        ("len(tokens) <= limit", "len(tokens) < limit", "one token is missing"),
    ],
}

"""Wrong answers to the exercises of the first look: changes of the solution, and a part of the hint that they get."""

WRONG = {
    "total_weight": [
        ("6 * 12 * 9", "6 * 12 * 7", "special tokens"),
        ("6 * 12 * 9", "6 * 12 * 9**2", "number of weights"),
        ("6 * 12 * 9", "9", "one head"),
        ("6 * 12 * 9", "12 * 9", "one layer"),
    ],
    "previous_word_head": [
        ("diagonal(-1)", "diagonal(1)", "looks at the token after"),
        ("((layer, head))", "((layer + 1, head + 1))", "counted from 0"),
        ("((layer, head))", "((head, layer))", "order is layer, head"),
        ("diagonal(-1)", "diagonal(0)", "the token itself"),
    ],
    "similarity": [
        ("        changed = ", "    changed = ", "inside the with block"),
        ("layers=layer", "layers=layer, heads=[0]", "only head 0"),
        ("layers=layer", "None", "all layers are off"),
        ("layers=layer", "layers=layer - 1", "counted from 0"),
        ("layers=layer", "layers=min(layer, 4) + 1", "Pass the layer that the function gets"),
        ("usual @", "1 - usual @", "Return the cosine"),
    ],
}

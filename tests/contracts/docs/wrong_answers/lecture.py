"""Wrong answers to the exercises of the lecture on language: changes of the solution, and a part of their hint."""

WRONG = {
    "masking": [
        ("[120, 15, 15]", "[150, 0, 0]", "only 80% of these tokens"),
        ("[120, 15, 15]", "[800, 100, 100]", "chooses 15% of the tokens first"),
        ("[120, 15, 15]", "[120, 100, 100]", "10% of the 150 tokens"),
        ("[120, 15, 15]", "[120, 15, 850]", "not predict the other 850"),
        ("[120, 15, 15]", "[0.12, 0.015, 0.015]", "fractions of the 1,000 tokens"),
        ("[120, 15, 15]", "[15, 15, 120]", "the order is [MASK]"),
    ],
    "bert_parameters": [
        ("width * width + width)\n    feed", "width * width)\n    feed", "the biases of the attention, or both norms"),
        ("+ 2 * (2 * width)", "+ 2 * width", "each layer has two norms"),
        (" + 2 * (2 * width)", "", "the biases of the attention, or both norms"),
        (" * width + 2 * width\n", " * width\n", "norm of the embeddings"),
        (" + pooler", "", "pooler is missing"),
        ("layers * layer", "layer", "one layer is counted"),
        ("+ segments) * width", ") * width", "table of the segments"),
        (
            "(width * hidden + hidden) + (hidden * width + width)",
            "width * hidden * 2",
            "feed-forward networks are missing",
        ),
        ("(vocab +", "(2 * vocab +", "counted twice"),
    ],
    "copying_head": [
        ("head = 2", "head = 0", "head 0 gives a weight of 0.00"),
        ("head = 2", "head = 3", "Without this head, 100% of the digits are still right"),
        ("head = 2", "head = 4", "has the heads 0 to 3"),
    ],
    "one_layer": [
        ("number_of_notes = 3", "number_of_notes = 1", "following one note needs no attention"),
        ("number_of_notes = 3", "number_of_notes = 2", "One layer is enough"),
        (", None)", ", manyheads.core.layers.FeedForward(32, 64))", "only attention is left"),
        ("self.output(x)  #", "self.output(x)[:, 0]  #", "expected a tensor of shape (4, 8, 8), found (4, 8)"),
        ("(Hunter, number", "(Hunter(2), number", "Pass the class"),
        ("range(layers)", "range(2)", "the model for 1 layer has 2 different blocks"),
        ("nn.ModuleList(Block(Attention(32, 2), None) for _ in range(layers))", "...", "in the class"),
    ],
    "right_heads": [
        ("dim=1", "dim=0", "reads the columns"),
        (" + 1", "", "counted from 1"),
        (" if head != 0", "", "does not count as a word"),
        (" / len(words)", "", "Divide it by"),
        ("== heads[i]", "!= heads[i]", "for which the head is wrong"),
        ("return sum", "return 100 * sum", "a percentage"),
    ],
    "honest_loss": [
        ("model(tokens[:, :t])[:, -1]", "model(tokens)[:, t - 1]", "reads the whole text at once"),
        ("tokens[:, :t])", "tokens[:, :t + 1])", "is the token that it must predict"),
        ("tokens[:, t])", "tokens[:, t - 1])", "has just read"),
        (".mean()", ".sum()", "Take the mean"),
        ("model(tokens[:, :t])[:, -1]", "model(tokens[:, :-1])[:, t - 1]", "all tokens but the last at once"),
        ("range(1, tokens.shape[1])", "range(2, tokens.shape[1])", "begins at t = 2"),
        ("range(1, tokens.shape[1])", "range(1, tokens.shape[1] - 1)", "ends too early"),
        ("[:, -1]", "[:, 0]", "logits of the first position"),
    ],
}

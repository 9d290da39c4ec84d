"""Search for attention heads that follow syntactic relations, on a treebank of sentences with annotated syntax."""

"""Probing of attention heads on a treebank: the syntactic relations that each head follows."""

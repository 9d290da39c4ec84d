"""What the heads of a model do on a treebank: which of them follows which relation between words."""

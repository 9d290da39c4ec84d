"""Tagging, which predicts a label for each word of a text, as in named entity recognition."""

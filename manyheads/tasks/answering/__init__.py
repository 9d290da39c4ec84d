"""Extractive question answering, where the answer to a question is a span of a given text."""

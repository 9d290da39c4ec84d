"""Extractive question answering: answers are spans of a text."""

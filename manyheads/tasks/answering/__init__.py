"""Answers to questions as spans of a text."""

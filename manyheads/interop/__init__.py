"""Conversion of models between the formats of Hugging Face and Manyheads.

For each model family, one table of names declares the conversion. The table works in both directions, and anything that
it does not mention is an error.
"""

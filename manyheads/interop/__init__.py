"""Conversion of models between the formats of Hugging Face and Manyheads.

For each model family (such as BERT), one table of names declares the conversion. The table works in both directions.
Anything that the table does not mention is an error, so that no part of a model is silently lost.
"""

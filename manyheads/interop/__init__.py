"""Conversion of models between the formats of Hugging Face and Manyheads.

For each model family (such as BERT), one conversion table pairs the names of settings and tensors in Manyheads with the
names in Hugging Face files. The table is used for reading and for writing. A setting or tensor that the table does not
contain is an error, so that no part of a model is silently lost.
"""

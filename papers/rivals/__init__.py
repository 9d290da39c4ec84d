"""Translators of table 2 of Vaswani et al. 2017: the Transformer and its rivals, with small models."""

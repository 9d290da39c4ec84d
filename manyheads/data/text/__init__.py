"""Conversion of text to batches of token ids: tokenizers, files of token ids, training blocks and windows."""

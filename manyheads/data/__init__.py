"""Data pipeline from files to batches of token ids: readers, tokenizers and batching.

It does not import PyTorch or models.
"""

"""Readers, tokenizers and batching: from files to batches of token ids. Independent of models and of PyTorch."""

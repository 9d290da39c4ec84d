"""Training and inference on a GPU, next to transformers: every part in a process of its own, within a time budget."""

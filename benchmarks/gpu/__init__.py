"""Training and inference on a GPU, next to transformers: each part in a separate process, within a time budget."""

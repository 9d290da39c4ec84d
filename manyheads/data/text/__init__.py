"""From text to batches of token ids: tokenizers, stores of token ids, blocks, windows."""

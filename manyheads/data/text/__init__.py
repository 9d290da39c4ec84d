"""From text to batches of token ids: tokenizers, token stores, blocks and windows."""

"""Building blocks of all Transformer models: attention, masks, caches, layers, positions. Depends only on torch."""

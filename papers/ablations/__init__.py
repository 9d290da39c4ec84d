"""The Transformer without each of its parts: residual connections, normalization, scaling, positions and others."""

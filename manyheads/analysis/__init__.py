"""Models opened up: what they cost, where their heads look, what their heads do, and the figures of their papers."""

"""Side-by-side measurements against peers, both in one run."""

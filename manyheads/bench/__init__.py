"""`manyheads bench`: every figure that is claimed of speed, measured again, ours and each peer's in one run."""

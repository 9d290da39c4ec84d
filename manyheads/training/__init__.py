"""Training loop for any `Objective` and any model, with checkpoints, distributed training and run records."""

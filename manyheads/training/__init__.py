"""Training loop for any `Task`, independent of the model, with checkpoints, distributed training and run records."""

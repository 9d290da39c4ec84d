"""In-context learning (Brown 2020): a small language model infers a task from the examples in its prompt."""

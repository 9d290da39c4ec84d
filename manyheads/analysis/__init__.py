"""What a model holds: parameters, operations and memory."""

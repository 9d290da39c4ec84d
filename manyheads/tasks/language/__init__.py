"""Language models: the next token."""

"""Language models, which predict the next token."""

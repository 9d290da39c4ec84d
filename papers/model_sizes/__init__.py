"""Growth of published models, a figure of the textbook's chapter on Transformers."""

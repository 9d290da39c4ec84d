"""Analysis of models: costs, attention maps, the functions of heads, and figures of papers."""

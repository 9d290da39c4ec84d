"""Analysis of models: computing costs, attention maps, the function of each attention head, and figures from papers."""

"""What a model is trained to do: its loss, its predictions, its metrics, its directory."""

"""Classification of texts and of pairs of texts."""

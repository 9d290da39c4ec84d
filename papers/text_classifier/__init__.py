"""TF-IDF and logistic regression, a baseline of the textbook's text classifier (Chollet 2021, section 11.3)."""

"""Translation with an encoder-decoder."""

MOST_BEAMS = 1024  # hypotheses of a text; here for the command line, which imports the predictor only to translate

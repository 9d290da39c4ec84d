"""Translation with an encoder-decoder."""

# Maximum beam width. It is defined here so that the command line can check it without importing the predictor.
MAX_BEAMS = 1024

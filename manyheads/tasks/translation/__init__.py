"""Translation of texts with an encoder-decoder."""

# Maximum beam width. It is defined here, so that the command line can check the user's value without loading the
# predictor.
MAX_BEAMS = 1024

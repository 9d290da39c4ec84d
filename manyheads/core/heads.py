"""Names of the modules that form the head of a model: classifiers, and layers that exist only with certain heads."""

# CLASSIFIERS have one output row per label. HEADS also includes all modules that exist only if a model has certain
# heads.
CLASSIFIERS = ("classifier", "cell_classifier", "head", "distillation_head", "output")
_PRETRAINING = ("pooler", "transform", "transform_norm", "output_bias", "next_sentence", "representation", "projection")
HEADS = (*CLASSIFIERS, *_PRETRAINING)


def belongs_to_head(name: str) -> bool:
    """Return True if the parameter or module of this name is part of a head."""
    return name.partition(".")[0] in HEADS

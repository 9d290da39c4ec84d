"""A run's data as one value: where they lie, which file is which split, what is held out, what a report says."""

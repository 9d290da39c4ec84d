"""One paper, one file: a configuration, its presets, and the module, assembled from the bricks of the core."""

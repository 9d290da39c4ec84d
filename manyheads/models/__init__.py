"""Models, one file per paper: a configuration and the module, assembled from the building blocks of the core."""

"""Built-in corpora, which require no download: they are files of the package, or are generated."""

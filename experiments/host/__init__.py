"""A run on its host: processes, files, checkpoints, progress."""

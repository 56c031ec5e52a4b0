"""What a run asks of its host: processes, files, checkpoints, progress."""

"""The book: runs all configs, and compares them with the statements of sources."""

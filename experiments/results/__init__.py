"""Says what a run found: its tables, files, and what claims measure in them."""

"""The results of a run: tables, files, and the measures of claims."""

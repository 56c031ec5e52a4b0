"""The book: every config in one command, and what each shows of its sources."""

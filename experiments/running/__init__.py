"""Runs a program of an experiment: compiled, fed, watched and saved."""

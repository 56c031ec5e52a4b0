"""Runs a program of an experiment: compiles, feeds, reports and saves it."""

"""Decisions on a cluster: which protocol, and what its staleness costs."""

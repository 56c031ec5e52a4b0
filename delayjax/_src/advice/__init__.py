"""Advice for a cluster: the protocol to use, and the cost of its staleness."""

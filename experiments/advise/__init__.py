"""Advice on a cluster, from a log of its times: a page with three pictures."""

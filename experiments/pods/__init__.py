"""Tools for runs on many devices: compiling ahead of time, and estimating overlap."""

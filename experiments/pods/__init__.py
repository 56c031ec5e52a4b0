"""Tools for runs on many devices: compiling ahead, and overlap."""

"""What only runs on many devices need: compiling ahead, overlap, throughput."""

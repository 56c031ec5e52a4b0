"""A comparison of rules for stale gradients, all tuned on the same clusters."""

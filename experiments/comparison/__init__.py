"""Rules for stale gradients on equal terms: all tuned, on the same clusters."""

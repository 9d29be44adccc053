"""Detect non-finite values: norms before and after the reduction, losses, and the flags that a rank votes with."""

"""Wrap functions of another package and undo it: resolve, wrap, restore, shield. Knows nothing of NaN."""

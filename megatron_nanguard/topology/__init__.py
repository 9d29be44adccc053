"""The coordinates of a rank in the parallel layout, and sets of ranks in words."""

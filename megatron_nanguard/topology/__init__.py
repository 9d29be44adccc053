"""Where a rank stands, and what a set of ranks is called."""

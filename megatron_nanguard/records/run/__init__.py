"""What a run writes once: how it was started, its parameters, its planted drills, and what the guard did in it."""

"""One guarded run: how its ranks start together, its optimizers, what it writes outside of incidents."""

"""One step of training: what was saved before it, and what came of running it again."""

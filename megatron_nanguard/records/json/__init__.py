"""A record as JSON: its text, its file, its schema, and the checks of what is read."""

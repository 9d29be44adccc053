"""The traces of all ranks joined into one story."""

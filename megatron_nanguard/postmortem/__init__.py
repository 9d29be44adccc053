"""Files of a run: written so that evidence survives, read back with clear errors, merged into one incident."""

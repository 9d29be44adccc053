"""Files of a run: write them, find and read them again, and merge those of all ranks into one incident."""

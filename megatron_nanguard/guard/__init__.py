"""The guard of one process: its patch points, whether it is on, and what it does in every training step."""

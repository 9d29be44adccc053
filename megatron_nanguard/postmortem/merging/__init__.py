"""Merge the post-mortems of all ranks into one incident; `incident.py` reads them one by one, the others help it."""

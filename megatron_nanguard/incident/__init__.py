"""One alarm from first to last; `stages.py` holds the order of what happens."""

"""While the pass runs: operators and messages become events that hold names, places and flags, but no tensor."""

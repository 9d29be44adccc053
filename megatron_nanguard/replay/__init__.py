"""Record the schedule call of each step, and after an alarm make the same call again in place."""

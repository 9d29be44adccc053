"""The replay of an incident: whether the step can be run again, the passes that are made, and what they show."""

"""The suspect call of an origin: the call as it was saved, and the results of running it again."""

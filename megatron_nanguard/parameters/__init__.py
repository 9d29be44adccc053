"""From a buffer offset or an optimizer shard to the global name of a parameter."""

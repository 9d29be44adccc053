"""Global names of parameters, and the parameter at a place in a gradient buffer or an optimizer shard."""

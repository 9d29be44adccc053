"""Join the traces of all ranks: where it began, in which order, and which communication infected which rank."""

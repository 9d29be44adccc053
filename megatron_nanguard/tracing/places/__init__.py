"""Where in the step an operator runs: phase, micro-batch, module, autograd node and line of source."""

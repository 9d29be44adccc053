"""Where in the step an operator runs, from micro-batch to source line, and in whose memory a tensor lies."""

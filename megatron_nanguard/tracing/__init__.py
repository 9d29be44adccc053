"""Run one micro-batch under a dispatch mode and find the operator that made its gradient bad.

origin  forward, micro-batch 2, decoder.layers.1.mlp, log -> nan, at model.py:41 in forward
path    log in decoder.layers.1.mlp > mul in decoder.layers.1.mlp > add in decoder.layers.1 > ...
sink    gradient of decoder.layers.0.mlp.linear_fc1.weight, nan

`tracer.Tracer` watches the pass. `places/` says where in the step an operator runs, `recording/` keeps an event of each
operator and message, and `walking/` follows the bad values back through the events once the pass is over.
"""

"""One step again under a dispatch mode: which operator, in which module and micro-batch, a bad gradient leads back to.

origin  forward, micro-batch 2, decoder.layers.1.mlp, log -> nan, at model.py:41 in forward
path    log in decoder.layers.1.mlp > mul in decoder.layers.1.mlp > add in decoder.layers.1 > ...
sink    gradient of decoder.layers.0.mlp.linear_fc1.weight, nan
"""

"""The calls that run in the traced pass: of modules, and of the forward and backward of autograd.Functions."""

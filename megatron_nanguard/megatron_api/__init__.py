"""Every attribute of Megatron that the guard reads, and how it differs between releases.

Begin with `protocols`, which lists them by object.
"""

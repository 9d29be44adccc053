"""Every Megatron attribute the guard reads, and how it differs between releases."""

"""A model whose layers are kernels that no dispatcher sees: the layer spec `opaque`, beside Megatron's `local`.

    nanguard cpu-run --nproc 2 pretrain_gpt.py ARGS... --spec tests.opaque.spec layer_spec

On GPUs nearly every layer of a Megatron model is an `autograd.Function` around kernels that write through raw pointers.
Here each layer is one such Function, in the shape that Transformer Engine gives it, and its kernels are C (`kernels.c`,
compiled on first use) or numpy on raw memory. Megatron is the installed one, unmodified. `spec` is the entrance,
`options` has the environment variables, `faults` makes a kernel go wrong.

Source of the shapes: NVIDIA/TransformerEngine, transformer_engine/pytorch (module/, attention/, permutation.py,
quantization.py)
"""

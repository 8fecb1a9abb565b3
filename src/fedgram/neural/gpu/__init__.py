"""The networks' work on a GPU, as Triton kernels and recorded steps.

The reference of every kernel is a function of `neural/` in plain torch, which the kernel's docstring names.
"""

"""The networks' work on a GPU, as Triton kernels and recorded steps; every kernel has a reference in `neural/`."""

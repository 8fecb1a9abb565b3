"""Small recurrent language models in PyTorch, as functions over dictionaries of weights.

MKL computes torch's matrix products on a CPU. Importing this package sets MKL's reproducible mode, in which the numbers
of a row do not depend on its place in the matrix. Without it, some processors give other numbers, and samples would
depend on how they are batched (`neural/sampling.py`). MKL reads the setting at its first product: a program that
multiplies matrices before it imports this package must set MKL_CBWR itself.
"""

import os

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

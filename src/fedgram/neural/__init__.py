"""Small recurrent language models in PyTorch, as functions over dictionaries of weights.

MKL, which computes torch's products on a CPU, is asked for numbers that do not depend on where in a matrix a row is:
on some processors they otherwise do, and the same samples would not come out of any batches (`neural/sampling.py`). It
reads this with its first product; a program that computes some before it imports this package must set it itself.
"""

import os

os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

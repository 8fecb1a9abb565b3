"""Small recurrent language models in PyTorch, as functions over dictionaries of weights."""

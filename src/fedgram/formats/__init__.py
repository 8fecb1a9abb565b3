"""Files that models are kept in. The only layer that knows log10, foreign symbols and other programs' habits."""

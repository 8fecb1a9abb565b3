"""Model file formats. Only this layer knows log10 and the conventions of other programs."""

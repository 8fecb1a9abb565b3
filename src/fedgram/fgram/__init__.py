"""The packed model `lm.fgram`: the file, its writer, and its readers."""

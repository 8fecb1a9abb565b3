"""Text: vocabularies, corpora and the words in them."""

"""Text: importers, populations of users, corpora, vocabularies and word pieces."""

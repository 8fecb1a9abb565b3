"""Vocabulary discovery: words outside the whitelist that many devices have, found character by character."""

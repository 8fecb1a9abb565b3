"""The keyboard in a browser: JavaScript modules that read `lm.fgram` and decode typing, and their page."""

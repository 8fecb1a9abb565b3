"""One run from users' text to a keyboard model: its configuration, and the folder that holds what it makes."""

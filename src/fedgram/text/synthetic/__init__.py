"""Generated typists: phrase grammars, and people who type from them."""

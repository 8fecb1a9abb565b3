"""A keyboard: what taps and glides mean, with a packed model and the user's own words. Paper: §1.1."""

"""A keyboard: decoding taps and glides with a packed model and the user's own words. Paper: §1.1."""

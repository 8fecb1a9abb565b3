"""How good a model is for people who type: accuracy, likelihood and saved keystrokes by user, with intervals."""

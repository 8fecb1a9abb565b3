"""Evaluation of models on typed text: accuracy, likelihood and keystroke savings per user, with intervals."""

from fedgram.core.lazy import callable_package

callable_package(__name__, ".evaluate.comparison:evaluate")

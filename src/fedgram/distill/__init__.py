"""From a neural model to n-gram models: capitalisation, sampling and approximation."""

from fedgram.core.lazy import callable_package

callable_package(__name__, ".distill.distillation:distill")

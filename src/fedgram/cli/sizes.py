"""How large a model is, as commands print it."""

from typing import Any

from fedgram.automata.model import NGramModel


def size(model: NGramModel) -> dict[str, Any]:
    """The order, and the numbers of n-grams and states."""
    t = model.topology
    return {"order": t.order, "ngrams_by_order": t.arcs_by_order(), "ngrams": t.arcs, "states": t.states}

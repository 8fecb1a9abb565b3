"""All measures of some models as a table."""

from collections.abc import Mapping

from fedgram.report.document import Cell, Table
from fedgram.report.paper_tables import signed
from fedgram.report.results import ModelResult

MEASURES = {
    "top1": "top-1 [%]", "top3": "top-3 [%]", "oov_rate": "OOV rate [%]", "perplexity": "perplexity",
    "sll_e": "SLL^e", "keystroke_savings": "taps saved [%]",
}  # fmt: skip


def measures_table(models: Mapping[str, ModelResult], caption: str = "") -> Table:
    """A row per model, and below it its change from the baseline."""
    rows: list[tuple[Cell, ...]] = []
    details: set[int] = set()
    for name, result in models.items():
        rows.append((name, *(str(level) if (level := result.levels.get(key)) else None for key in MEASURES)))
        if result.change:
            # SLL^e is a logarithm: its relative change has no meaning.
            changes = (result.change.get(key) if key != "sll_e" else None for key in MEASURES)
            details.add(len(rows))
            rows.append(("change [%]", *(signed(change) for change in changes)))
    return Table(("Model", *MEASURES.values()), tuple(rows), caption, details=frozenset(details))

"""The report of a run: first the result, then how it was made, all measures beside the paper's, figures and examples.

`headline` has the result, and `paper_tables` the paper's own tables.
"""

from collections.abc import Mapping
from pathlib import Path

from fedgram.core.storage import atomic_write
from fedgram.report.document import (
    Block,
    Cell,
    Code,
    Contents,
    Figure,
    Heading,
    Notice,
    Paragraph,
    Table,
    to_html,
    to_markdown,
)  # fmt: skip
from fedgram.report.headline import result
from fedgram.report.measures import MEASURES, measures_table
from fedgram.report.paper_tables import PAPER_WAY, accuracy_tables, architecture_table, clipping_table, signed
from fedgram.report.published import LANGUAGES
from fedgram.report.results import Experiment, LanguageResult, Results, Value

# Descriptions of models, by the start of their names; a report shows those of its own models.
_NAMES = {
    "Baseline": "an n-gram model trained only on the server's text",
    "A_W_e, A_P_e": "the network of words (W) or word pieces (P), distilled onto the n-grams of the server's text",
    "A_W_i, A_P_i": "the network distilled onto n-grams that are inferred from its own samples",
    "A_W_m, A_P_m": "A_W_e interpolated with A_W_i, and A_P_e with A_P_i",
    "A_W_r, A_P_r": "the network distilled again, onto the n-grams of the interpolated model",
    "R_W, R_P": "the networks of words and of word pieces, trained on devices",
    "Refit": "the network of words distilled onto many n-grams, then fitted to their counts on devices",
    "Final model": "the best of these models on dev users, the baseline included, alone or with word frequencies from "
    "devices",
    "lm.fgram": "the final model, packed for phones",
    "Pooled": "an n-gram model of all users' text in one place, which federated learning avoids",
}


def write_report(results: Results, folder: Path) -> tuple[Path, Path]:
    """Write `report.html` and `report.md` into the folder, and return both paths."""
    page, twin = folder / "report.html", folder / "report.md"
    blocks = build(results)
    for path, text in ((page, to_html(blocks)), (twin, to_markdown(blocks, folder))):
        with atomic_write(path) as file:
            file.write(text.encode())
    return page, twin


def build(results: Results) -> list[Block]:
    """The blocks of the report, in order; parts without results are left out."""
    blocks: list[Block] = [Heading(results.title, 1), *result(results)]
    if results.warnings:
        blocks.append(Notice(tuple(f"{warning[:1].upper()}{warning[1:]}." for warning in results.warnings)))
    top = len(blocks)
    blocks += _values("How it was made", results.about)
    blocks += _names(results)
    tables = [
        clipping_table(results.clipping), architecture_table(results.architectures), accuracy_tables(results)
    ]  # fmt: skip
    if any(tables):
        note = (
            "Our results are measured on held-out users, with 95 % intervals by the jackknife over user buckets. The "
            "paper's results come from the live traffic of another population, so only the relative changes, in "
            "brackets, can be compared."
        )
        blocks += [Heading("The paper's tables"), Paragraph(note), *(block for part in tables for block in part)]
    for name, language in results.languages.items():
        blocks += _all_measures(f"{LANGUAGES.get(name, name)}, case-insensitive", language)
    for name, language in results.cased.items():
        blocks += _all_measures(f"{LANGUAGES.get(name, name)}, case-sensitive", language)
    blocks += _experiment(results.experiment)
    if results.figures:
        blocks += [Heading("Figures"), *(Figure(*figure) for figure in results.figures)]
    blocks += _examples(results)
    if results.sizes:
        rows = tuple((name, ngrams, f"{size / 1e6:,.2f}") for name, ngrams, size in results.sizes)
        blocks += [Heading("Model sizes"), Table(("Model", "n-grams", "size [MB]"), rows)]
    blocks += _stages(results)
    blocks += _values("Privacy", results.privacy)
    blocks += _audits(results)
    if results.config:
        blocks += [Heading("Configuration"), Code(results.config, "Full configuration")]
    if results.files:
        lines = "".join(f"{digest}  {name}\n" for name, digest in results.files.items())
        blocks += [Heading("Files"), Code(lines, "SHA-256 of the run's files, as `sha256sum --check` reads it")]
    return [*blocks[:top], Contents(), *blocks[top:]] if len(blocks) > top else blocks


def _audits(results: Results) -> list[Block]:
    """What attacks on the models found."""
    blocks: list[Block] = [Heading("Audits")] if results.audits else []
    for audit in results.audits:
        blocks += [Heading(audit.title, 3), *map(Paragraph, audit.notes), Table(audit.header, audit.rows)]
    return blocks


def _values(title: str, values: Mapping[str, Value]) -> list[Block]:
    if not values:
        return []
    rows = tuple((name if " " in name else name.replace("_", " "), value) for name, value in values.items())
    return [Heading(title), Table(("", ""), rows, text_columns=True)]


def _names(results: Results) -> list[Block]:
    """Descriptions of the models and of the measures."""
    models = [model for by_case in (results.languages, results.cased) for r in by_case.values() for model in r.models]
    described = {
        names: what
        for names, what in _NAMES.items()
        if any(model.startswith(tuple(names.split(", "))) for model in models)
    }
    if not described:
        return []
    if any(model.endswith(PAPER_WAY) for model in models):
        described["…" + PAPER_WAY] = "the same, distilled the paper's own way, to compare with"
    note = (
        "OOV: words that are not in a model's vocabulary; they count as wrong. 𝒱: the words that all models of a table "
        "have. Perplexity: per word of 𝒱 and sentence end; lower is better. SLL^e: log-likelihood per sentence in nats "
        "over the words of 𝒱; higher is better. Both leave out the other words for every model, so that models are "
        "compared on the same words. Taps saved: by a user who accepts every helpful suggestion. λ: the per-device cap "
        "on the number of words counted."
    )
    return [Heading("The models"), Table(("", ""), tuple(described.items()), text_columns=True), Paragraph(note)]


def _all_measures(title: str, language: LanguageResult) -> list[Block]:
    caption = "± is half the width of the 95 % interval. Changes are relative to the baseline, for the same users."
    if language.shared_words is not None and language.outside is not None:
        caption += (
            f" 𝒱 has {language.shared_words:,} words; {language.outside:.2f} % of the typed words are outside it."
        )
    return [Heading(f"All measures, {title}"), measures_table(language.models, caption)]


def _experiment(experiment: Experiment | None) -> list[Block]:
    if experiment is None:
        return []
    measures = {key: title for key, title in MEASURES.items() if key in ("top1", "top3", "oov_rate")}
    rows = tuple(
        (name, *(signed(changes.get(key)) for key in measures)) for name, changes in experiment.changes.items()
    )
    note = (
        f"As in an experiment on live traffic, users are assigned to two arms of {experiment.users_per_arm:,}: one has "
        "the baseline, the other the model. The arms have different users, so intervals are wider than for the same "
        f"users. With the same model in both arms, the interval covers zero in {100 * experiment.aa_coverage:.1f} % of "
        "2,000 experiments. Each model has its own arms, so one model under two names has two results."
    )
    header = ("Model", *(title.replace(" [%]", "") for title in measures.values()))
    caption = "Relative change from the baseline's arm [%]"
    return [Heading("Simulated A/B experiments"), Paragraph(note), Table(header, rows, caption)]


def _examples(results: Results) -> list[Block]:
    if not results.examples:
        return []
    models = list(dict.fromkeys(model for _, suggestions in results.examples for model in suggestions))
    rows = tuple(
        (f"{context} …", *(" · ".join(suggestions[m]) if m in suggestions else None for m in models))
        for context, suggestions in results.examples
    )
    caption = "The three words that a keyboard would suggest, best first"
    return [Heading("Example predictions"), Table(("After", *models), rows, caption, text_columns=True)]


def _stages(results: Results) -> list[Block]:
    if not results.stages:
        return []
    rows: list[tuple[Cell, ...]] = [
        (name, f"{seconds:,.1f}", None if peak is None else f"{peak / 1e9:.2f}")
        for name, seconds, peak in results.stages
    ]
    rows.append(("total", f"{sum(seconds for _, seconds, _ in results.stages):,.1f}", None))
    caption = "Peak memory of the process up to the end of the stage"
    return [Heading("Time and memory"), Table(("Stage", "seconds", "peak [GB]"), tuple(rows), caption)]

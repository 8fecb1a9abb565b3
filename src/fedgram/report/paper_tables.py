"""The paper's tables with our numbers beside its own. Paper: Tables 1 to 4.

The paper's absolute levels come from the live traffic of another population, so they are not comparable with ours. The
relative changes, each against its own baseline, are comparable.
"""

from math import isinf

from fedgram.evaluate.jackknife import Estimate
from fedgram.report.document import Block, Cell, Heading, Paragraph, Table
from fedgram.report.published import BASELINE, LANGUAGES, TABLE_1, TABLE_1_BASELINE, TABLE_3, TABLE_4, Published
from fedgram.report.results import Architecture, Clipping, LanguageResult, Results

PAPER_WAY = " (paper)"  # after the name of a model that was made the paper's own way
_WAYS = {"ours": "", "paper": PAPER_WAY}
_CAPTIONS = (
    (TABLE_3, "Table 3", "top-1 accuracy of the word models [%]"),
    (TABLE_4, "Table 4", "top-1 accuracy of the word-piece models [%]"),
)


def signed(estimate: Estimate | None) -> str | None:
    """A change with its sign and half the width of its interval."""
    if estimate is None:
        return None
    value = f"{estimate.value:+.2f}"
    return f"{value} ± {estimate.half_width:.2f}" if estimate.interval else value


def accuracy_tables(results: Results) -> list[Block]:
    """Tables 3 and 4, once for each way in which the models were made."""
    blocks: list[Block] = []
    ways = {way: suffix for way, suffix in _WAYS.items() if _has_models(results, suffix)}
    for table, number, title in _CAPTIONS:
        for letter, (way, suffix) in zip("ab", ways.items(), strict=False):
            name = f"{number} ({letter}), " + ("our way" if way == "ours" else "the paper's way")
            blocks += _accuracies(results, table, suffix, f"{name if len(ways) > 1 else number}: {title}")
    if not blocks:
        return []
    titles = {"ours": "Our way", "paper": "The paper's way"}
    texts = [Paragraph(f"{titles[way]}: {results.ways[way]}.") for way in ways if way in results.ways]
    return [Heading("Tables 3 and 4: distilled models", 3), *texts, *blocks]


def _has_models(results: Results, suffix: str) -> bool:
    wanted = {f"{model}{suffix}" for table in (TABLE_3, TABLE_4) for model in table if model != BASELINE}
    return any(wanted & language.models.keys() for language in results.languages.values())


def _accuracies(results: Results, published: dict[str, dict[str, Published]], suffix: str, caption: str) -> list[Block]:
    """The paper's rows, with our columns and the paper's column for each language of the run."""
    ours = {model: model if model == BASELINE else f"{model}{suffix}" for model in published}
    own = set(ours.values()) - {BASELINE}
    languages = [name for name, result in results.languages.items() if own & result.models.keys()]
    if not languages:
        return []
    header = ["Model"]
    for name in languages:
        title = LANGUAGES.get(name, name)
        header += [f"{title}, ours", *([f"{title}, ours, cased"] if name in results.cased else []), f"{title}, paper"]
    rows = []
    for model, numbers in published.items():
        row: list[Cell] = [model]
        for name in languages:
            by_case = [by_case[name] for by_case in (results.languages, results.cased) if name in by_case]
            row += [_ours(language, ours[model]) for language in by_case]
            row.append(_papers(published, model, name) if name in numbers else None)
        rows.append(tuple(row))
    return [Table(tuple(header), tuple(rows), f"{caption}; relative change [%] in brackets")]


def _ours(language: LanguageResult, model: str) -> Cell:
    result = language.models.get(language.baseline or BASELINE if model == BASELINE else model)
    level = result.levels.get("top1") if result else None
    if result is None or level is None:
        return None
    change = result.change.get("top1")
    return f"{level} ({signed(change)})" if change else str(level)


def _papers(published: dict[str, dict[str, Published]], model: str, language: str) -> Cell:
    level, half = published[model][language]
    if half is None:
        return f"{level:.2f}"
    return f"{level:.2f} ± {half:.2f} ({100 * (level / published[BASELINE][language][0] - 1):+.1f})"


def clipping_table(clipping: Clipping | None) -> list[Block]:
    """Table 1, and why accuracy changes."""
    if clipping is None:
        return []
    measures = {"top1": "top-1 [%]", "oov_rate": "OOV rate [%]"}
    header = ["Model"]
    for title in measures.values():
        header += [f"{title}, ours", f"{title}, paper"]
    first: list[Cell] = ["baseline"]
    for key in measures:
        level = clipping.baseline.get(key)
        first += [str(level) if level else None, f"{TABLE_1_BASELINE[key]:.2f}"]
    rows = [tuple(first)]
    for row in clipping.rows:
        cells: list[Cell] = [_threshold(row.clip)]
        for key in measures:
            paper = TABLE_1.get(row.clip, {}).get(key)
            cells += [signed(row.change.get(key)), f"{paper[0]:+.2f} ± {paper[1]:.2f}" if paper else None]
        rows.append(tuple(cells))
    caption = "Table 1: relative change [%] with L1-clipped unigrams; the first row has the levels of the baseline"
    table = Table(tuple(header), tuple(rows), caption)
    return [Heading("Table 1: clipped unigrams", 3), table, *_clipping_details(clipping)]


def _threshold(clip: float) -> str:
    return "λ = ∞" if isinf(clip) else f"λ = {clip:,g}"


def _clipping_details(clipping: Clipping) -> list[Block]:
    """The setting of our Table 1, and why accuracy changes."""
    replaced, interpolated = (clipping.control.get(way, {}).get("top1") for way in ("replaced", "interpolated"))
    if replaced is None or interpolated is None or not clipping.rows:
        return []
    rows: list[tuple[Cell, ...]] = [("the server's text", signed(replaced), signed(interpolated), None)]
    for number, row in enumerate(clipping.rows):
        oov = signed(row.against_first.get("oov_rate")) if number else None
        rows.append((_threshold(row.clip), *(signed(c.get("top1")) for c in (row.change, row.interpolated)), oov))
    against = f"OOV rate against {_threshold(clipping.rows[0].clip)}"
    header = ("Word frequencies from", "top-1, replaced", "top-1, interpolated", against)
    caption = (
        "Relative change [%] if word frequencies replace the unigrams of the baseline, or are interpolated with them, "
        "half and half"
    )
    return [
        Paragraph(_setting(clipping)),
        Table(header, tuple(rows), caption),
        Paragraph(_explanation(replaced, interpolated)),
    ]


def _setting(clipping: Clipping) -> str:
    parts = ["Our Table 1 has a setting in which λ can matter."]
    if None not in (clipping.devices, clipping.words, clipping.max_words):
        parts.append(
            f"{clipping.devices:,} devices report once each, the same ones for every λ, and name {clipping.words:,} "
            f"different words. The models have room for {clipping.max_words:,} words, so λ decides which ones get in."
        )
    parts.append(
        "The baseline has the most frequent words of the server's text. With λ = 1, every device has the same weight; "
        "with λ = ∞, every typed word has."
    )
    return " ".join(parts)


def _explanation(replaced: Estimate, interpolated: Estimate) -> str:
    """Why accuracy changes, with the control's numbers."""
    effect = "better" if replaced.value > 0 else "worse"
    if replaced.covers(0.0):
        effect = "neither measurably better nor worse"
    return (
        "Why the accuracy changes: the first row is a control. It has the words and the text of the baseline, and only "
        f"its unigrams are plain frequencies, so its change of {signed(replaced)} % is due to the replacement alone. "
        "The unigrams of a Kneser-Ney model are not frequencies but weights for words that follow a backoff; here, "
        f"frequencies predict {effect}. Interpolated, the control changes by {signed(interpolated)} %. The rest of a "
        "row's change is due to the words: those that devices report come in, without longer n-grams, and words of the "
        "server's text go out, with all their n-grams."
    )


def architecture_table(architectures: tuple[Architecture, ...]) -> list[Block]:
    """Table 2."""
    if not architectures:
        return []
    trained = any(network.sll_e is not None for network in architectures)
    shape, sizes = ("N_l", "N_h", "N_e"), ("S_e, ours", "S_e, paper", "S_total, ours", "S_total, paper")
    rows: list[tuple[Cell, ...]] = []
    for n in architectures:
        millions = (n.embedding_parameters, n.paper_embedding, n.parameters, n.paper_total)
        likelihood = (n.sll_e,) if trained else ()
        rows.append((n.preset, n.layers, n.hidden, n.embedding, *(f"{size:.2f}M" for size in millions), *likelihood))
    caption = (
        "Table 2: parameters of the networks. N_l: layers; N_h: hidden units; N_e: dimension of the embedding; S_e and "
        "S_total: parameters of the embedding and in total"
    )
    if trained:
        caption += ". SLL^e: per dev sentence, of the best round, for the networks that this run trained"
        caption += "".join(
            f". {n.preset} was trained with {n.trained_parameters:.2f}M parameters, as devices reported too few words "
            "for more pieces"
            for n in architectures
            if n.trained_parameters is not None and f"{n.trained_parameters:.2f}" != f"{n.parameters:.2f}"
        )
    header = ("Model", *shape, *sizes, *(("SLL^e, ours",) if trained else ()))
    return [Heading("Table 2: networks", 3), Table(header, tuple(rows), caption)]

"""The beginning of a report: the result in one sentence, one chart, and the row of the final model."""

from collections.abc import Iterator, Mapping

from fedgram.evaluate.jackknife import Estimate
from fedgram.report.document import Bar, Block, Chart, Lead
from fedgram.report.measures import measures_table
from fedgram.report.paper_tables import PAPER_WAY
from fedgram.report.published import LANGUAGES
from fedgram.report.results import LanguageResult, Results

_TOO_WIDE = 10.0  # per cent, relative to the baseline
_MOST_BARS = 7
_NOTES = {
    "Baseline": "from the server's text only",
    "R_": "trained on devices",
    "Final model": "for phones",
    "Pooled text": "needs all users' text in one place",
}
_DISTILLED = "the network as an n-gram model"


def result(results: Results) -> list[Block]:
    """The result per language: one sentence, one chart, and the row of the final model, or else of the best one."""
    blocks: list[Block] = []
    for name, language in results.languages.items():
        changes = {model: change for model, r in language.models.items() if (change := r.change.get("top1"))}
        if not changes or not language.baseline:
            continue
        chosen = language.final if language.final in changes else max(changes, key=lambda model: changes[model].value)
        levels = {model: level for model, r in language.models.items() if (level := r.levels.get("top1"))}
        if language.baseline not in levels or chosen not in levels:
            continue
        new, old = levels[chosen], levels[language.baseline]
        change = changes[chosen]
        sentence = results.result or result_sentence(chosen, new, language.baseline, old, change, results.measured)
        prefix = f"{LANGUAGES.get(name, name)}: " if len(results.languages) > 1 else ""
        caption = "Share of typed words that were the keyboard's first suggestion. Lines are 95 % intervals over users."
        chart = Chart(tuple(_bars(levels, chosen, language)), caption)
        blocks += [Lead(prefix + sentence), chart, measures_table({chosen: language.models[chosen]})]
    return blocks


def _bars(levels: Mapping[str, Estimate], chosen: str, language: LanguageResult) -> Iterator[Bar]:
    """A bar for every model; if they are many, for those that tell the story."""
    ours = [model for model in levels if not model.endswith(PAPER_WAY)]
    best = max((model for model in ours if model.startswith("A_")), key=lambda m: levels[m].value, default="")
    for model, level in levels.items():
        note = _DISTILLED if model == best else next((what for m, what in _NOTES.items() if model.startswith(m)), "")
        if model in (chosen, language.baseline) or (model in ours and (note or len(ours) <= _MOST_BARS)):
            yield Bar(model, level.value, level.interval, f"{_rounded(level)} %", model == chosen, note)


def result_sentence(
    model: str, new: Estimate, baseline: str, old: Estimate, change: Estimate, measured: str | None = None
) -> str:
    """What came out, in plain words. It is a result only if the interval of the change leaves out zero."""
    whom, levels = measured or "the held-out users", f"{_rounded(new)} % of next words, against {_rounded(old)} %"
    if change.interval is None:
        return f"No result: {whom} are too few for an interval ({_in_sentence(model)}: {levels})."
    low, high = change.interval
    if low > 0 or high < 0:
        verdict = f"{_sentence_case(model)} is {'better' if low > 0 else 'worse'} than {_in_sentence(baseline)}"
        by = f"{abs(change.value):.1f} ± {change.half_width:.1f} % {'more' if low > 0 else 'less'}"
        return f"{verdict}: it predicts {levels}. That is {by}, on {whom}."
    between = f"the change is between {low:+.1f} % and {high:+.1f} % ({levels})"
    if is_too_wide(change):
        return f"No result: {whom} are too few to tell {_in_sentence(model)} from {_in_sentence(baseline)}; {between}."
    return f"{_sentence_case(model)} and {_in_sentence(baseline)} do not differ measurably on {whom}; {between}."


def is_too_wide(change: Estimate) -> bool:
    """Whether an interval that contains zero is so wide that it says nothing: more users are needed."""
    return change.interval is None or change.half_width > _TOO_WIDE


def _rounded(level: Estimate) -> str:
    return f"{level.value:.1f} ± {level.half_width:.1f}" if level.interval else f"{level.value:.1f}"


def _in_sentence(model: str) -> str:
    """The name of a model inside a sentence."""
    return f"the {model.lower()}" if model in ("Baseline", "Final model") else model


def _sentence_case(model: str) -> str:
    """The name of a model at the beginning of a sentence."""
    name = _in_sentence(model)
    return name[:1].upper() + name[1:]

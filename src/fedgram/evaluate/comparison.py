"""Models compared on the same users: the operation behind the command, the stage of a run, and the library."""

import html
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fedgram.core.errors import FedgramError
from fedgram.core.progress import Begin, silent
from fedgram.core.settings import Between, Settings, chosen, setting
from fedgram.evaluate.evaluation import Evaluation, evaluate_model
from fedgram.evaluate.forms import shared_forms
from fedgram.evaluate.jackknife import BUCKETS
from fedgram.evaluate.models import Model, as_scorer, in_memory, vocabulary_of
from fedgram.evaluate.predictor import Predictor
from fedgram.evaluate.summary import summarize, summarize_experiment
from fedgram.text.population import Users
from fedgram.text.vocabulary import Vocabulary

COLUMNS = {
    "top1": "top-1 %", "top3": "top-3 %", "oov_rate": "OOV %", "perplexity": "perplexity", "sll_e": "SLLᵉ",
    "keystroke_savings": "taps saved %",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class EvaluationOptions(Settings):
    """How models are compared (§7.2 of the paper)."""

    buckets: Annotated[int, Between(2)] = setting(
        BUCKETS, "Number of buckets of users for the jackknife's 95 % intervals."
    )
    experiment: bool = setting(False, "Also simulate an A/B experiment against the baseline.")


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Every model's figures over the same users, with 95 % intervals, and its change against the baseline.

    `models` maps names to figures, as `evaluate/summary.py` describes them. In a notebook it shows itself as a table.
    Perplexity and SLL^e are over 𝒱, the words that all models have: `shared_words` of them. A share `outside` of the
    typed words, in per cent, is not among them.
    """

    users: int
    words: int
    shared_words: int
    outside: float
    cased: bool
    baseline: str | None
    models: Mapping[str, Mapping[str, Any]]
    experiment: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls,
        evaluations: Mapping[str, Evaluation],
        options: EvaluationOptions,
        *,
        shared: Set[str],
        cased: bool,
        baseline: str | None,
        seed: int,
        users: int | None = None,
    ) -> "Comparison":
        """Compare evaluations over the same users, with the same 𝒱.

        The evaluations may be of groups of users; then `users` is the number of users in all groups.
        """
        if options.experiment and baseline is None:
            raise FedgramError("an experiment needs a baseline to compare with")
        first, old = next(iter(evaluations.values())), evaluations[baseline] if baseline is not None else None
        models = {
            name: summarize(e, None if e is old else old, buckets=options.buckets) for name, e in evaluations.items()
        }
        experiment = None
        if options.experiment and old is not None:
            others = {name: e for name, e in evaluations.items() if e is not old}
            experiment = summarize_experiment(old, others, seed=seed, buckets=options.buckets)
        outside, users = 100.0 * first.outside / first.words, len(first.client_ids) if users is None else users
        return cls(users, first.words, len(shared), outside, cased, baseline, models, experiment)

    def rows(self, gap: str = " ± ") -> list[list[str]]:
        """The table, row by row: names, and figures with half of their 95 % intervals."""
        rows = []
        for name, figures in self.models.items():
            rows.append([name, *(cell(figures[key], "", gap) for key in COLUMNS)])
            if "change" in figures:
                rows.append(["  change", *(cell(figures["change"][key], "+", gap) for key in COLUMNS)])
        return rows

    @property
    def title(self) -> str:
        """What was measured, in a few words."""
        case = "cased" if self.cased else "uncased"
        return f"{self.users:,} users, {self.words:,} typed words, {case}"

    @property
    def scope(self) -> str:
        """The words over which perplexity and SLL^e are measured."""
        which = "the model has" if len(self.models) == 1 else "all models have"
        return (
            f"perplexity and SLLᵉ over the {self.shared_words:,} words that {which}; "
            f"{self.outside:.2f} % of the typed words are others"
        )

    def __repr__(self) -> str:
        table = [["", *COLUMNS.values()], *self.rows()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
            for row in table
        ]
        return "\n".join([self.title, *lines, self.scope])

    def _repr_html_(self) -> str:
        def row(cells: Iterable[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

        body = "".join(row(cells, "td") for cells in self.rows())
        return f"<table><caption>{self.title}; {self.scope}</caption>{row(['', *COLUMNS.values()], 'th')}{body}</table>"


def cell(figure: Mapping[str, Any], sign: str, gap: str) -> str:
    """A figure with half of its interval, as a table shows it."""
    if figure["value"] is None:
        return "–"
    value = f"{figure['value']:{sign}.2f}"
    if figure["ci95"] is None:
        return value
    low, high = figure["ci95"]
    return f"{value}{gap}{(high - low) / 2:.2f}"


def evaluate(
    models: "Model | Predictor | Iterable[Model | Predictor] | Mapping[str, Model | Predictor]",
    users: Users,
    options: EvaluationOptions | None = None,
    *,
    baseline: "Model | Predictor | None" = None,
    cased: bool = False,
    seed: int = 0,
    begin: Begin = silent,
    **settings: Any,
) -> Comparison:
    """Measure how well models predict what held-out users type.

    Perplexity and SLL^e are measured over the words that all models have, the baseline included. So they are comparable
    within one call, but not between calls with other models.

    Args:
        models: One model, several, or several by name: n-gram models, packed models, networks, or files. Networks of
            word pieces have likelihoods only.
        users: The users, such as `population.test`.
        options: How to compare; its fields may be given as keywords instead.
        baseline: The model to compare the others with.
        cased: Whether capitals must be right.
        seed: Of the experiment's arms.
        begin: Progress callback.
    """
    options, (named, name) = chosen(EvaluationOptions, options, settings), named_models(models, baseline)
    loaded, evaluations = {}, dict[str, Evaluation]()
    for each, model in named.items():
        begin(f"Reading {each}")
        loaded[each] = in_memory(model, pieces=True)
    shared = shared_words(map(vocabulary_of, loaded.values()), cased=cased)
    for each, model in loaded.items():
        scorer = as_scorer(model, cased=cased)
        advance = begin(f"Evaluating {each}", len(users))
        evaluations[each] = evaluate_model(scorer, users.population, users.clients, shared=shared, on_users=advance)
    if options.experiment:
        begin("Simulating experiments")
    return Comparison.of(evaluations, options, shared=shared, cased=cased, baseline=name, seed=seed)


def shared_words(vocabularies: Iterable[Vocabulary], *, cased: bool) -> frozenset[str]:
    """𝒱 of models to be compared; they must have some words in common."""
    shared = shared_forms(vocabularies, cased=cased)
    if not shared:
        raise FedgramError("the models have no word in common; compare models of one language")
    return shared


def named_models(
    models: Any, baseline: "Model | Predictor | None"
) -> "tuple[dict[str, Model | Predictor], str | None]":
    """Models by their names, the baseline first, and the baseline's name."""
    named = _named(models)
    if baseline is None:
        return named, None
    name = str(baseline) if isinstance(baseline, str | Path) else "baseline"
    return {name: baseline} | {other: model for other, model in named.items() if model is not baseline}, name


def _named(models: Any) -> "dict[str, Model | Predictor]":
    if isinstance(models, Mapping):
        return dict(models)
    several = list(models) if isinstance(models, list | tuple) else [models]
    names = [str(m) if isinstance(m, str | Path) else f"{type(m).__name__} {i}" for i, m in enumerate(several, 1)]
    return dict(zip(names, several, strict=True))

"""The models to compare with: each is pruned by the rule that suits it best on dev users."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedgram.automata.budget import Budget
from fedgram.automata.merge import merge
from fedgram.automata.model import NGramModel
from fedgram.core.errors import InputError
from fedgram.formats.artefact import read_ngram
from fedgram.pipeline.baseline_stage import NOT_PRUNED, RULES, baselines, prune_best
from fedgram.pipeline.config import BaselinesSection, PopulationSection
from fedgram.pipeline.judges import ByUsers, Models, dev_accuracy
from fedgram.pipeline.text_stages import population
from fedgram.pipeline.workspace import Work
from fedgram.text.population import Population, open_population

TEXT = ("users.population", "supplement.txt", "whitelist.txt")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    folder = tmp_path_factory.mktemp("run")
    population(Work(None, folder, {}), PopulationSection(typists=60, supplement_sentences=400), 3)
    return Work(None, folder, {name: folder / name for name in TEXT})


@pytest.fixture(scope="module")
def people(work: Work) -> Population:
    return open_population(work.read("users.population"))


@pytest.fixture(scope="module")
def model(work: Work) -> NGramModel:
    return NGramModel.train(work.read("supplement.txt"), order=3, smoothing="modified-kneser-ney")


@pytest.mark.parametrize("better", RULES)
def test_the_better_rule_is_taken(model: NGramModel, better: str) -> None:
    budget = Budget(max_ngrams=model.topology.arcs // 2)
    by_rule = {rule: budget.within(model, expected_histories=expected) for rule, expected in RULES.items()}

    def top1(models: Mapping[str, NGramModel]) -> dict[str, float]:
        wanted = by_rule[better].log_weight
        return {name: 60.0 if (one.log_weight == wanted).all() else 40.0 for name, one in models.items()}

    pruned = prune_best(model, budget, top1)
    assert (pruned.rule, pruned.top1) == (better, 60.0)
    assert (pruned.model.log_weight == by_rule[better].log_weight).all()


def test_by_the_accuracy_on_dev_users(model: NGramModel, people: Population, work: Work) -> None:
    budget = Budget(max_ngrams=model.topology.arcs // 3)
    pruned = prune_best(model, budget, partial(ByUsers().top1, work, cased=False))
    by_rule = {
        rule: dev_accuracy(budget.within(model, expected_histories=expected), people, cased=False)
        for rule, expected in RULES.items()
    }
    assert pruned.dev_top1 == by_rule
    assert by_rule["products of weights"] != by_rule["expected frequencies"]
    assert pruned.top1 == max(by_rule.values())


def test_a_small_model_is_left_alone(model: NGramModel, work: Work) -> None:
    pruned = prune_best(model, Budget(), partial(ByUsers().top1, work, cased=False))
    assert pruned.model is model
    assert pruned.rule == NOT_PRUNED


def test_the_stage_names_the_rules(work: Work, tmp_path: Path) -> None:
    config = BaselinesSection(order=3, smoothing="modified-kneser-ney", open_vocabulary=True, shares=(0.2, 0.5))
    at = Work(None, tmp_path, work.inputs)
    baselines(at, config, Budget(max_ngrams=3000))
    told = json.loads((tmp_path / "baselines.json").read_text())
    assert list(told) == ["Baseline", "Pooled text", "Pooled + supplement"]
    for name, file in (("Baseline", "baseline"), ("Pooled text", "pooled"), ("Pooled + supplement", "interpolated")):
        assert told[name]["rule"] in RULES
        assert read_ngram(tmp_path / f"{file}.ngram").topology.arcs <= 3000
    mixed = told["Pooled + supplement"]
    top1 = {share: max(found["dev_top1"].values()) for share, found in mixed["by_share"].items()}
    assert top1[f"{mixed['share']:g}"] == max(top1.values())
    baselines(at, BaselinesSection(order=2, pooled=False), Budget())
    assert list(json.loads((tmp_path / "baselines.json").read_text())) == ["Baseline"]


@dataclass
class InTurn(ByUsers):
    """Judges who find the accuracies of a list, one after the other."""

    found: list[float]

    def top1(self, work: Work, models: Models, *, cased: bool) -> dict[str, float]:  # noqa: ARG002
        return dict.fromkeys(models, self.found.pop(0))


@pytest.mark.parametrize(
    ("found", "best"), [([70.0, 60.0, 50.0], 0.2), ([50.0, 70.0, 60.0], 0.5), ([50.0, 60.0, 70.0], 0.7)]
)
def test_the_share_that_suits_dev_users_best_is_taken(
    work: Work, tmp_path: Path, found: list[float], best: float
) -> None:
    """Wherever it stands in the list; the file is the mixture with this share of the supplement's model."""
    config = BaselinesSection(order=2, shares=(0.2, 0.5, 0.7))
    baselines(Work(None, tmp_path, work.inputs), config, Budget(max_ngrams=10**9), judges=InTurn([1.0, 2.0, *found]))
    assert json.loads((tmp_path / "baselines.json").read_text())["Pooled + supplement"]["share"] == best
    a, b, mixed = (read_ngram(tmp_path / f"{name}.ngram") for name in ("baseline", "pooled", "interpolated"))
    np.testing.assert_allclose(mixed.log_weight, merge(a, b, weight=best).log_weight, rtol=1e-6)


def test_without_users_the_population_is_the_servers_text(work: Work, tmp_path: Path) -> None:
    given = {"supplement": work.read("supplement.txt"), "whitelist": work.read("whitelist.txt")}
    population(Work(None, tmp_path, given), PopulationSection(supplement="s.txt", whitelist="w.txt"), 3)
    assert {path.name for path in tmp_path.iterdir()} == {"supplement.txt", "whitelist.txt", "population.json"}
    assert (tmp_path / "whitelist.txt").read_bytes() == given["whitelist"].read_bytes()
    words = len(given["whitelist"].read_text().splitlines())
    assert json.loads((tmp_path / "population.json").read_text()) == {"whitelist": words}


def test_a_supplement_without_sentences_is_refused_by_the_name_that_the_user_gave(work: Work, tmp_path: Path) -> None:
    (tmp_path / "blank.txt").write_text("\n \n")
    given = {"supplement": tmp_path / "blank.txt", "whitelist": work.read("whitelist.txt")}
    (tmp_path / "run").mkdir()
    with pytest.raises(InputError, match=r"blank\.txt: contains no sentences; give text that the server may see"):
        population(Work(None, tmp_path / "run", given), PopulationSection(supplement="s.txt", whitelist="w.txt"), 3)
    assert not list((tmp_path / "run").iterdir())

"""Files of models that are evaluated side by side."""

from pathlib import Path

import pytest

from fedgram.automata.model import NGramModel
from fedgram.core.errors import FedgramError
from fedgram.evaluate import model_files
from fedgram.evaluate.model_files import ModelFile, evaluate_files
from fedgram.files import save
from fedgram.text.population import population_from_messages, write_population

TEXT = ["a cat sat", "a dog sat", "the cat ran"]


def test_several_processes_find_what_one_finds_and_refuse_other_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage that asks is noted with its own code, so other processes must run the same."""
    people, files = tmp_path / "users.population", {}
    write_population(people, population_from_messages([("u", TEXT[0], "test"), ("v", TEXT[2], "test")]))
    for order in (1, 2):
        path = tmp_path / f"{order}.ngram"
        save(NGramModel.train(TEXT, order=order), path)
        files[str(order)] = ModelFile(path, [False])
    shared = {False: frozenset({"a", "cat"})}
    one, two = (evaluate_files(files, people, "test", shared, workers=workers)[False] for workers in (1, 2))
    for name, evaluation in one.items():
        for measure, found in evaluation.measures.items():
            assert found.amount.tolist() == two[name].measures[measure].amount.tolist()
    monkeypatch.setattr(model_files, "code_digest", lambda _: "of another version")
    with pytest.raises(FedgramError, match="the code changed while the run went on; run it again"):
        evaluate_files(files, people, "test", shared, workers=2)

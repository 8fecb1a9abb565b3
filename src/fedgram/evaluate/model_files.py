"""Model files evaluated side by side, in several processes.

Evaluations come back as JSON: amounts and counts by measure and user, in double precision.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedgram.core.processes import Processes
from fedgram.core.sources import check_code, code_digest
from fedgram.evaluate.evaluation import Evaluation, evaluate_model
from fedgram.evaluate.measure import Measure
from fedgram.evaluate.models import as_predictor, in_memory
from fedgram.text.population import open_population

_FUNCTION = ".evaluate.model_files:evaluate_some"


class ModelFile(NamedTuple):
    """A file with a model, and the cases in which it is evaluated: without and with regard to capitals."""

    path: Path
    cases: Sequence[bool]


def evaluate_files(
    files: Mapping[str, ModelFile], population: Path, split: str, shared: Mapping[bool, frozenset[str]], *,
    workers: int = 1, advance: Callable[[int], object] = lambda _: None,
) -> dict[bool, dict[str, Evaluation]]:  # fmt: skip
    """Evaluate models on the users of a split; by case and name, in the order of the files.

    Args:
        files: The models by name.
        population: The file of the users.
        split: Whose text to predict.
        shared: 𝒱 by case; see `evaluate_model`.
        workers: Number of processes; with 1, the models are evaluated in this process.
        advance: Called with 1 for every model that is done.
    """
    client_ids, told = _client_ids(population, split), dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="fedgram-") as folder, Processes(workers) as processes:
        words = Path(folder) / "shared.json"
        words.write_text(json.dumps({str(cased): sorted(forms) for cased, forms in shared.items()}), "utf-8")
        users: dict[str, Any] = {"population": str(population), "split": split, "shared": str(words)}
        users["code"] = code_digest(evaluate_some)
        parts = [list(files)[first::workers] for first in range(min(workers, len(files)))]
        calls = [{"files": {name: [str(files[name].path), list(files[name].cases)] for name in part}} for part in parts]
        if workers == 1:
            told = evaluate_some(calls[0]["files"], **users, advance=advance)
        else:
            for future in as_completed([processes.submit(_FUNCTION, {**call, **users}) for call in calls]):
                told |= future.result()
                advance(len(future.result()))
    return {
        cased: {name: _from_json(told[name][str(cased)], client_ids) for name in files if cased in files[name].cases}
        for cased in shared
    }


def evaluate_some(
    files: Mapping[str, Sequence[Any]], population: str, split: str, shared: str,
    code: str | None, advance: Callable[[int], object] = lambda _: None,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Evaluate models, each given by its path and its cases; returns JSON values by name and case.

    `code` is the digest of this function's code in the process that asks.
    """
    check_code(evaluate_some, code)
    users = open_population(population).users(split)
    words = {case: frozenset(forms) for case, forms in json.loads(Path(shared).read_text("utf-8")).items()}
    found: dict[str, dict[str, Any]] = {}
    for name, (path, cases) in files.items():
        model, found[name] = in_memory(Path(path)), {}
        for cased in cases:
            predictor = as_predictor(model, cased=cased)
            measured = evaluate_model(predictor, users.population, users.clients, shared=words[str(cased)])
            found[name][str(cased)] = _to_json(measured)
        advance(1)
    return found


def _client_ids(population: Path, split: str) -> tuple[str, ...]:
    users = open_population(population).users(split)
    return tuple(users.population.client_ids[client] for client in users.clients.tolist())


def _to_json(evaluation: Evaluation) -> dict[str, Any]:
    measures = {
        name: {"amount": m.amount.tolist(), "count": m.count.tolist(), "exponential": m.exponential}
        for name, m in evaluation.measures.items()
    }
    return {"measures": measures, "outside": evaluation.outside}


def _from_json(told: Mapping[str, Any], client_ids: tuple[str, ...]) -> Evaluation:
    measures = {
        name: Measure(np.array(m["amount"], float), np.array(m["count"], float), m["exponential"])
        for name, m in told["measures"].items()
    }
    return Evaluation(client_ids, measures, told["outside"])

"""Federated learning of n-gram language models for keyboards.

    import fedgram as fg

The names of `__all__` are the public surface; each is imported when it is first used. `docs/library.md` describes them.
"""

import sys
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Every public name and the module that defines it; `__init__.pyi` has the same names for type checkers.
_PLACES = {
    "Budget": ".automata.budget",
    "Compute": ".core.compute",
    "DeviceEvaluationOptions": ".evaluate.on_devices",
    "DiscoveryOptions": ".federated.discovery.options",
    "DistillationOptions": ".distill.distillation",
    "EvaluationOptions": ".evaluate.comparison",
    "FedAvgOptions": ".training.options",
    "FederatedTask": ".federated.task",
    "FedgramError": ".core.errors",
    "NGramModel": ".automata.model",
    "Network": ".neural.network",
    "PackedModel": ".fgram.reader",
    "Population": ".text.population",
    "PretrainingOptions": ".training.options",
    "RefitOptions": ".distill.refit.refit",
    "RunConfig": ".pipeline.config",
    "UnigramOptions": ".federated.collect_unigrams",
    "WordPieces": ".text.wordpieces",
    "collect_unigrams": ".federated.collect_unigrams",
    "discover": ".federated.discovery.discover",
    "distill": ".distill.distillation",
    "distill_onto": ".distill.distillation",
    "evaluate": ".evaluate.comparison",
    "evaluate_on_devices": ".evaluate.on_devices",
    "load": ".files",
    "merge": ".automata.merge",
    "pack": ".files",
    "pretrain": ".training.central_training",
    "refit": ".distill.refit.refit",
    "run": ".pipeline.run",
    "run_task": ".federated.run_task",
    "save": ".files",
    "train_federated": ".training.train_federated",
    "train_pieces": ".text.wordpieces",
}

__all__ = [*_PLACES]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'fedgram' has no attribute {name!r}")
    module = import_module(_PLACES[name], __name__)
    value = globals()[name] = sys.modules.get(f"{__name__}.{name}", getattr(module, name))  # see `callable_package`
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

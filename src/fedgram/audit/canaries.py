"""The audit with planted secrets: plant them, make the models, and see what each model shows."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fedgram.audit.canary_models import Models, Trial
from fedgram.audit.exposure import by_cell, expose
from fedgram.audit.options import CanaryOptions
from fedgram.audit.planting import draw_canaries, draw_sequences, plant
from fedgram.core.compute import Compute
from fedgram.core.errors import FedgramError, InputError
from fedgram.core.progress import Begin, silent
from fedgram.core.random import stream
from fedgram.core.storage import atomic_write
from fedgram.text.normalize import uncase
from fedgram.text.population import Population, write_population

SETTINGS = "settings.json"


def secret_words(trial: Trial, count: int) -> list[str]:
    """The words that secrets are made of: the most frequent ones that the public text's model has too."""
    known = {uncase(word) for word in trial.external.vocabulary.words}
    frequency = trial.unigrams.frequency()
    words = [word for word in frequency if word in known and word.isalpha() and uncase(word) == word]
    words = sorted(words, key=lambda word: (-frequency[word], word))[:count]
    if len(words) < 2:
        raise FedgramError("too few words are known to devices and to the public text; use more of either")
    return words


def audit_canaries(
    population: Population, trial: Trial, options: CanaryOptions, folder: Path, *, digest: str = "",
    compute: Compute | None = None, begin: Begin = silent,
) -> dict[str, Any]:  # fmt: skip
    """Plant secrets, make all models in a folder, and attack them; `digest` names the settings of the trial."""
    folder.mkdir(parents=True, exist_ok=True)
    claim(folder, {**asdict(options), "trial": digest})
    pool = secret_words(trial, options.words)
    canaries = draw_canaries(
        pool, length=options.length, holders=options.holders, repeats=options.repeats, copies=options.copies,
        seed=trial.seed,
    )  # fmt: skip
    users = plant(population, canaries, seed=trial.seed)
    write_population(folder / "users.population", users)
    rng = stream(trial.seed, "references")
    references = draw_sequences(pool, options.length, options.references, rng)
    found, models = [], Models(trial, users, folder, compute=compute, begin=begin)
    for name, predictor in models.predictors(network=options.network):
        advance = begin(f"Attacking {name}", len(canaries))
        shown = expose(
            predictor, canaries, references, pool, known=options.known, width=options.width, advance=advance
        )  # fmt: skip
        found.append({"model": name, "cells": by_cell(shown)})
    return {
        "canaries": len(canaries), "words": len(pool), "length": options.length, "known": options.known,
        "references": options.references, "most_exposure": float(np.log2(options.references + 1)),
        "users": len(users.train), "epsilon": trial.privacy.epsilon, "delta": trial.privacy.delta,
        "min_devices": trial.privacy.min_devices, "notes": models.notes, "models": found,
    }  # fmt: skip


def claim(folder: Path, settings: Mapping[str, Any]) -> None:
    """Note what a folder's files were made with; refuse a folder of other settings."""
    path, wanted = folder / SETTINGS, json.dumps(settings, sort_keys=True)
    if not path.exists():
        with atomic_write(path) as file:
            file.write(wanted.encode() + b"\n")
    elif path.read_text("utf-8").strip() != wanted:
        raise InputError(folder, "holds the models of another audit", remedy="name another folder")

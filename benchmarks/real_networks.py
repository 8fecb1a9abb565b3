"""Networks trained on real users' text, where text and GPU are on different machines.

    python -m benchmarks.real_networks pack users.parquet supplement.txt U.unigrams -o en_us.npz   (beside the text)
    python -m benchmarks.real_networks train en_us-W_30K en_us.npz [--pieces P.model] -o FOLDER    (beside the GPU)
    python -m benchmarks.real_networks show FOLDER… -o docs/results                                (curves and a table)

The GPU's machine needs torch, triton, numpy, numba and safetensors alone. `RECIPES` has the settings: those of the
English networks and of pt_br-W_30K were found on dev users; en_us-W_30K-paper is the paper's server, and pt_br-P_4K-L a
guess that has not been tried. The supplement is read as `fedgram data normalize --uncased` writes it.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from fedgram.core.arrays import Ragged
from fedgram.core.storage import atomic_write
from fedgram.text.population import Population

CLIENTS = 500
KNOWN_WORDS = 30_000


@dataclass(frozen=True)
class Recipe:
    """Rounds of 500 clients after epochs on the supplement; batches are rows × length; the norm limits updates."""

    rounds: int
    rows: int
    length: int
    epochs: int
    client_rate: float
    server: str
    server_rate: float
    norm: float = 2.0
    schedule: str = "cosine"
    sentences: int = 64


RECIPES = {
    "en_us-W_30K": Recipe(856, 6, 21, 2, 0.5, "adam", 0.015),
    "en_us-W_30K-paper": Recipe(500, 6, 21, 2, 0.5, "nesterov", 1.0, norm=1.0, schedule="constant"),
    "en_us-P_4K-L": Recipe(382, 5, 25, 1, 0.2, "adam", 0.015),
    "pt_br-W_30K": Recipe(500, 4, 32, 2, 0.2, "adam", 0.01),
    "pt_br-P_4K-L": Recipe(330, 4, 40, 2, 0.15, "adam", 0.01),
}


def pack(users: Path, supplement: Path, unigrams: Path, out: Path) -> None:
    """Everything that training reads, as arrays."""
    from fedgram.text.corpus import read_corpus
    from fedgram.text.population import open_population
    from fedgram.text.unigrams import read_unigrams

    p, text = open_population(users), read_corpus([supplement])
    names = {
        "words": list(p.words), "ids": list(p.client_ids), "frequent": list(read_unigrams(unigrams))[: 2 * KNOWN_WORDS],
        "supplement_words": text.vocabulary.words,
    }  # fmt: skip
    arrays: dict[str, Any] = {name: np.frombuffer("\n".join(lines).encode(), np.uint8) for name, lines in names.items()}
    arrays |= {name: getattr(p, name) for name in ("split", "first_sentence", "first_token", "token")}
    arrays |= {"supplement": text.sentences.values, "supplement_offsets": text.sentences.offsets}
    with out.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def train(name: str, data: Path, pieces: Path | None, folder: Path, rounds: int | None) -> None:
    """Train by the recipe; writes the network with its curve."""
    from fedgram.fedavg.run import Moment, RunOptions
    from fedgram.fedavg.run import train as train_federated
    from fedgram.fedavg.task import FederatedAveraging, Schedule, TrainingPlan
    from fedgram.federated.averaging import ServerStep
    from fedgram.federated.cohort import CohortPlan
    from fedgram.federated.driver import Devices
    from fedgram.neural.central_training import CentralTraining, train_centrally
    from fedgram.neural.devices import choose_device
    from fedgram.neural.local_training import LocalTraining
    from fedgram.neural.model import PRESETS, ModelShape, initial_weights
    from fedgram.neural.network import Network, as_arrays, piece_coding, word_coding, write_network
    from fedgram.neural.scoring import text_to_score

    recipe, began, device = RECIPES[name], perf_counter(), choose_device("auto")
    preset = PRESETS[name.split("-", 1)[1].removesuffix("-paper")].shape
    z = np.load(data, allow_pickle=False)
    words, ids, frequent, other = (
        z[n].tobytes().decode().split("\n") for n in ("words", "ids", "frequent", "supplement_words")
    )
    population = Population(
        tuple(ids), z["split"], z["first_sentence"], z["first_token"], z["token"], tuple(words)
    )  # fmt: skip
    frequency = dict.fromkeys(frequent, 1.0)
    coding = (
        piece_coding(pieces.read_bytes(), frequency, KNOWN_WORDS) if pieces else word_coding(frequency, preset.words)
    )
    shape = ModelShape(len(coding.vocabulary), preset.embedding, preset.hidden, preset.layers, preset.cell)
    codes = coding.codes(other).take(z["supplement"])
    central = CentralTraining(epochs=recipe.epochs, learning_rate=4e-3, rows=512)
    start = train_centrally(
        shape, {n: w.to(device) for n, w in initial_weights(shape, seed=3).items()},
        Ragged(codes.values, codes.offsets[z["supplement_offsets"]]), central,
    )  # fmt: skip
    print(f"{name}: a start after {perf_counter() - began:.0f} s", flush=True)
    rounds = rounds or recipe.rounds
    plan = TrainingPlan(
        LocalTraining(recipe.client_rate), recipe.rows, recipe.length, max_sentences=recipe.sentences,
        update_norm=recipe.norm, server=ServerStep(recipe.server, recipe.server_rate),
        server_schedule=Schedule(recipe.schedule, rounds, last=0.02),
    )  # fmt: skip
    own = coding.codes(population.words)
    devices = Devices(population, own if pieces else own.values, population.clients("train"))

    def tell(moment: Moment) -> None:
        if s := moment.scores:
            if not s.perplexity < 1e5:
                raise SystemExit(f"{name} diverged in round {moment.round}")
            print(
                f"{name}: round {moment.round}, loss {moment.loss:.3f}, dev SLL^e {s.sll_e:.3f}, "
                f"top-1 {s.top1 or float('nan'):.2f} %, {moment.tokens_per_second / 1e6:.2f}M tokens/s", flush=True,
            )  # fmt: skip

    result = train_federated(
        FederatedAveraging(shape, as_arrays(start), plan), devices, CohortPlan(CLIENTS),
        text_to_score(coding, population, population.clients("dev")), RunOptions(rounds, 7, max(1, rounds // 10)),
        pieces=pieces is not None, device=str(device), on_round=tell,
    )  # fmt: skip
    about = {"curve": result.story["dev"], "rounds": rounds, "seconds": perf_counter() - began, "recipe": str(recipe)}
    folder.mkdir(parents=True, exist_ok=True)
    write_network(folder / f"{name}.safetensors", Network(shape, result.weights, coding, about))
    (folder / f"{name}.json").write_text(json.dumps(about))


def show(folders: list[Path], out: Path) -> None:
    """Figure 4 and a table, from the curves that training wrote."""
    from fedgram.report.figures import draw_likelihood

    stories = {p.stem: json.loads(p.read_text()) for folder in folders for p in sorted(folder.glob("*-[WP]_*.json"))}
    out.mkdir(parents=True, exist_ok=True)
    lines = ["| network | rounds | dev SLL^e | perplexity | top-1 [%] | top-3 [%] |", "|---|---|---|---|---|---|"]
    for name, story in stories.items():
        last = max(story["curve"], key=lambda point: point["sll_e"])
        tops = [f"{100 ** (last[t] < 1) * last[t]:.2f}" if last[t] else "–" for t in ("top1", "top3")]
        lines.append(
            f"| {name} | {last['round']} | {last['sll_e']:.2f} | {last['perplexity']:.1f} | {' | '.join(tops)} |"
        )
    for language in sorted({name.split("-")[0] for name in stories}):
        curves = {
            name.split("-", 1)[1]: [(point["round"], point["sll_e"]) for point in story["curve"]]
            for name, story in stories.items() if name.startswith(language)
        }  # fmt: skip
        draw_likelihood(curves, out / f"networks-{language}.png")
    with atomic_write(out / "networks.json") as file:
        file.write(json.dumps(stories, indent=1).encode() + b"\n")
    print("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_subparsers(dest="way", required=True)
    packing, training, showing = (ways.add_parser(way) for way in ("pack", "train", "show"))
    for name in ("users", "supplement", "unigrams"):
        packing.add_argument(name, type=Path)
    training.add_argument("name", choices=RECIPES)
    training.add_argument("data", type=Path)
    training.add_argument("--pieces", type=Path)
    training.add_argument("--rounds", type=int)
    showing.add_argument("folders", type=Path, nargs="+")
    for way in (packing, training, showing):
        way.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    if given.way == "pack":
        pack(given.users, given.supplement, given.unigrams, given.output)
    elif given.way == "train":
        train(given.name, given.data, given.pieces, given.output, given.rounds)
    else:
        show(given.folders, given.output)


if __name__ == "__main__":
    main()

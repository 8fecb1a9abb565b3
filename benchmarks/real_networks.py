"""Networks trained on real users' text, where text and GPU are on different machines.

    python -m benchmarks.real_networks pack users.parquet supplement.txt U.unigrams -o en_us.npz   (beside the text)
    python -m benchmarks.real_networks train en_us-W_30K… en_us.npz [--pieces P.model] -o FOLDER   (beside the GPU)
    python -m benchmarks.real_networks precision en_us-W_30K en_us.npz -o FOLDER                (bf16 against float32)
    python -m benchmarks.real_networks show FOLDER… -o docs/results                                (curves and a table)

The GPU's machine needs torch, triton, numpy, numba and safetensors alone. `RECIPES` has the settings, which were found
on dev users; en_us-W_30K-paper has the paper's server and client rate; `--with sentences=1024 --with norm=8` changes
them for one run. The supplement is read as `fedgram data normalize --uncased` writes it.
"""

import argparse
import json
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from fedgram.core.arrays import Ragged
from fedgram.core.errors import FedgramError
from fedgram.core.storage import atomic_write
from fedgram.text.population import Population

CLIENTS = 500
KNOWN_WORDS = 30_000


@dataclass(frozen=True)
class Recipe:
    """Rounds of 500 clients after epochs on the supplement; batches are rows × length; the norm limits updates.

    The start is the training on the supplement: its largest rate, and the rows of its batches.
    """

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
    start_rate: float = 4e-3
    start_rows: int = 512


RECIPES = {
    "en_us-W_30K": Recipe(480, 6, 21, 2, 0.3, "adam", 0.06, 4.0, sentences=256, start_rate=2e-3, start_rows=128),
    "en_us-W_30K-paper": Recipe(400, 6, 21, 2, 0.5, "nesterov", 1.0, 1.0, "constant", 64, 2e-3, 128),
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


class Setting:
    """What recipes with the same start share: the population's words in the ids of a network, and its first weights."""

    def __init__(self, preset: str, data: Path, pieces: Path | None, epochs: int, rate: float, rows: int) -> None:
        from fedgram.neural.model import PRESETS, ModelShape, initial_weights
        from fedgram.neural.network import as_arrays, piece_coding, word_coding
        from fedgram.neural.torch_devices import choose_torch_device
        from fedgram.training.central_training import CentralTraining, train_centrally

        began = perf_counter()
        self.device, self.preset, shape = choose_torch_device("auto"), preset, PRESETS[preset].shape
        z = np.load(data, allow_pickle=False)
        words, ids, frequent, other = (
            z[n].tobytes().decode().split("\n") for n in ("words", "ids", "frequent", "supplement_words")
        )
        self.population = Population(
            tuple(ids), z["split"], z["first_sentence"], z["first_token"], z["token"], tuple(words)
        )
        frequency = dict.fromkeys(frequent, 1.0)
        self.coding = (
            piece_coding(pieces.read_bytes(), frequency, KNOWN_WORDS) if pieces
            else word_coding(frequency, shape.words)
        )  # fmt: skip
        self.shape = ModelShape(len(self.coding.vocabulary), shape.embedding, shape.hidden, shape.layers, shape.cell)
        codes = self.coding.codes(other).take(z["supplement"])
        weights = {n: w.to(self.device) for n, w in initial_weights(self.shape, seed=3).items()}
        text = Ragged(codes.values, codes.offsets[z["supplement_offsets"]])
        self.start = as_arrays(train_centrally(self.shape, weights, text, CentralTraining(epochs, rate, rows)))
        print(f"{preset}: a start after {perf_counter() - began:.0f} s", flush=True)

    def train(self, name: str, rounds: int, *, gradient_norm: float | None = None) -> Any:
        """Train by a recipe; a limit on gradients, however large, has torch differentiate in single precision."""
        from fedgram.federated.averaging import ServerStep
        from fedgram.federated.cohort import RoundPlan
        from fedgram.federated.job import Job
        from fedgram.federated.rounds import RunOptions
        from fedgram.federated.simulation import SimulatedFleet
        from fedgram.neural.local_training import LocalTraining
        from fedgram.neural.scoring import text_to_score
        from fedgram.training.fedavg_run import DevSchedule, RoundProgress, train
        from fedgram.training.fedavg_task import FederatedAveraging
        from fedgram.training.plan import Schedule, TrainingPlan

        recipe = RECIPES[name]
        plan = TrainingPlan(
            LocalTraining(recipe.client_rate, gradient_norm), recipe.rows, recipe.length,
            max_sentences=recipe.sentences, update_norm=recipe.norm,
            server=ServerStep(recipe.server, recipe.server_rate),
            server_schedule=Schedule(recipe.schedule, rounds, last=0.02),
        )  # fmt: skip

        speeds: list[float] = []

        def tell(moment: RoundProgress) -> None:
            speeds.append(moment.tokens_per_second)
            if s := moment.scores:
                top1 = "" if s.top1 is None else f"top-1 {s.top1:.2f} %, "
                print(
                    f"{name}: round {moment.round}, loss {moment.loss:.4f}, dev SLL^e {s.sll_e:.3f}, {top1}"
                    f"{moment.tokens_per_second / 1e6:.2f}M tokens/s", flush=True,
                )  # fmt: skip

        dev = text_to_score(self.coding, self.population, self.population.clients("dev"))
        job = Job(FederatedAveraging(self.shape, self.start, plan, self.coding, str(self.device)), 7)
        fleet = SimulatedFleet(job, self.population.train)
        began = perf_counter()
        result = train(
            job, fleet, RunOptions(rounds, RoundPlan(CLIENTS, 1.3)), dev=dev,
            dev_schedule=DevSchedule(max(1, rounds // 10)), on_round=tell,
        )  # fmt: skip
        rates = sorted(speeds[len(speeds) // 4 :])
        print(
            f"{name}: {rates[len(rates) // 2] / 1e6:.2f}M tokens/s in the median round (after the first quarter), "
            f"{result.history['targets'] / (perf_counter() - began) / 1e6:.2f}M with evaluations", flush=True,
        )  # fmt: skip
        return result


@cache
def _setting(*start: Any) -> Setting:
    return Setting(*start)


def setting_of(name: str, data: Path, pieces: Path | None) -> Setting:
    """The recipe's setting, made once for all recipes that begin alike."""
    recipe, preset = RECIPES[name], name.split("-", 1)[1].removesuffix("-paper")
    return _setting(preset, data, pieces, recipe.epochs, recipe.start_rate, recipe.start_rows)


def train(name: str, data: Path, pieces: Path | None, folder: Path, rounds: int | None) -> None:
    """Train by the recipe; writes the network with its curve."""
    from fedgram.neural.network import Network, write_network

    rounds, setting, began = rounds or RECIPES[name].rounds, setting_of(name, data, pieces), perf_counter()
    result = setting.train(name, rounds)
    about = {
        "preset": setting.preset, "curve": result.history["dev"], "rounds": rounds, "seconds": perf_counter() - began,
        "recipe": str(RECIPES[name]),
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    network = Network(setting.shape, result.weights, setting.coding, about)
    write_network(folder / f"{name}.safetensors", network)
    (folder / f"{name}.json").write_text(json.dumps(about))


def precision(name: str, data: Path, pieces: Path | None, folder: Path, rounds: int | None) -> None:
    """Train some rounds twice from the same start, in the kernels' precision and in single; writes both loss curves."""
    setting, curves = setting_of(name, data, pieces), {}
    for what, limit in (("bf16 and TF32", None), ("single precision", 1e9)):
        print(what, flush=True)
        story = setting.train(name, rounds or 20, gradient_norm=limit).history
        curves[what] = {"loss": story["loss"], "dev": story["dev"]}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"precision-{name}.json").write_text(json.dumps(curves))


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


def _change(text: str) -> tuple[str, Any]:
    """A setting of a recipe, and its value."""
    name, _, value = text.partition("=")
    kinds: dict[str, Any] = {f.name: f.type for f in fields(Recipe)}
    if name not in kinds:
        raise argparse.ArgumentTypeError(f"{name} is no setting; there are {', '.join(kinds)}")
    return name, kinds[name](value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_subparsers(dest="way", required=True)
    packing, training, comparing, showing = (ways.add_parser(way) for way in ("pack", "train", "precision", "show"))
    for name in ("users", "supplement", "unigrams"):
        packing.add_argument(name, type=Path)
    for way in (training, comparing):
        way.add_argument("names", choices=RECIPES, nargs="+", metavar="name", help=", ".join(RECIPES))
        way.add_argument("data", type=Path)
        way.add_argument("--pieces", type=Path)
        way.add_argument("--rounds", type=int)
        way.add_argument("--with", dest="changes", metavar="SETTING=VALUE", type=_change, action="append", default=[])
    showing.add_argument("folders", type=Path, nargs="+")
    for way in (packing, training, comparing, showing):
        way.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    if given.way == "pack":
        pack(given.users, given.supplement, given.unigrams, given.output)
    elif given.way != "show":
        work = train if given.way == "train" else precision
        for name in given.names:
            RECIPES[name] = replace(RECIPES[name], **dict(given.changes))
            try:
                work(name, given.data, given.pieces, given.output, given.rounds)
            except FedgramError as error:
                print(error, flush=True)
    else:
        show(given.folders, given.output)


if __name__ == "__main__":
    main()

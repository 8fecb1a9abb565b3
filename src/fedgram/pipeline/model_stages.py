"""The stages on models: the eight of Algorithm 1, the final one, and its files for phones and other programs.

    distill_words    A_W_e, A_W_i, A_W_m, A_W_r from R_W
    distill_pieces   A_P_e, A_P_i, A_P_m, A_P_r from R_P
    final            the best of them and the refitted one, joined with the federated unigrams, as dev users judge
    pack             lm.fgram, and exports

Counting keeps a checkpoint in the stage's folder, so that a killed stage goes on from its last shard.
"""

from collections.abc import Iterable

from fedgram.automata.budget import Budget
from fedgram.automata.model import NGramModel
from fedgram.core.compute import Compute
from fedgram.distill.algorithm1 import Approximations, final_models
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.distillation import DistillationOptions, Running, distill
from fedgram.fgram.pack import pack
from fedgram.formats.artefact import read_ngram, write_ngram
from fedgram.formats.exports import EXPORTS, ExportOptions
from fedgram.neural.network import read_network
from fedgram.pipeline.config import FinalSection
from fedgram.pipeline.text_stages import dev_accuracy, write_json
from fedgram.pipeline.workspace import Work
from fedgram.text.population import open_population
from fedgram.text.unigrams import read_unigrams

LETTERS = ("e", "i", "m", "r")
REFIT, UNCASED = "Refit", "Refit (uncased)"


def candidates(files: Iterable[str]) -> dict[str, str]:
    """The names of the models that came of devices, by their files: the eight, and the refitted ones."""
    named = {"refit.ngram": REFIT, "refit_uncased.ngram": UNCASED}
    named |= {file: file.removesuffix(".ngram") for by in "WP" for file in model_files(by)}
    return {file: named[file] for file in files if file in named}


def model_files(by: str) -> tuple[str, ...]:
    """The files of a network's four models."""
    return tuple(f"A_{by}_{letter}.ngram" for letter in LETTERS)


def distill_words(work: Work, options: DistillationOptions, budget: Budget, seed: int, *, compute: Compute) -> None:
    """Gen(R_W, A_W, …, NN2WFA_W)."""
    models = distill(
        read_network(work.read("R_W.safetensors")), read_ngram(work.read("A_W.ngram")), options, budget=budget,
        seed=seed, running=Running(compute, folder=work.folder, begin=work.begin),
    )  # fmt: skip
    _write(work, "W", models)


def distill_pieces(work: Work, options: DistillationOptions, budget: Budget, seed: int, *, compute: Compute) -> None:
    """Gen(R_P, A_W, A_W_i, NN2WFA_P)."""
    models = distill(
        read_network(work.read("R_P.safetensors")), read_ngram(work.read("A_W.ngram")), options, budget=budget,
        inferred=read_ngram(work.read("A_W_i.ngram")), seed=seed,
        running=Running(compute, folder=work.folder, begin=work.begin),
    )  # fmt: skip
    _write(work, "P", models)


def _write(work: Work, by: str, models: Approximations) -> None:
    for letter, model in models.by_letter().items():
        write_ngram(model, work.write(f"A_{by}_{letter}.ngram"))
    fits = {x: {"summed": fit.before, "kl_minimum": fit.after} for x, fit in models.fits.items()}
    write_json(work.write(f"distillation_{by}.json"), {"cross_entropy": fits, "warnings": models.warnings()})


def final(work: Work, cased: bool, budget: Budget) -> None:
    """The best model on dev users, alone or joined with the unigrams in the way that is best on dev users."""
    people = open_population(work.read("users.arrow"))
    names = {file: name for file, name in candidates(work.inputs).items() if name != UNCASED}
    advance, scores = work.begin("Choosing the final model on dev users", len(names) + 3), dict[str, float]()
    best: tuple[str, NGramModel] | None = None

    def judge(name: str, model: NGramModel) -> None:
        nonlocal best
        scores[name] = dev_accuracy(model, people, cased=cased)
        if best is None or scores[name] > scores[best[0]]:
            best = name, model
        advance(1)

    for file, name in names.items():
        judge(name, read_ngram(work.read(file)))
    assert best
    base, model = best
    capitalizer = Capitalizer(read_ngram(work.read("A_W.ngram")))
    frequency = read_unigrams(work.read("U.unigrams"))
    joined = final_models(model, frequency, capitalizer, budget)
    for way, candidate in joined.items():
        judge(f"{base}, unigrams {way}", candidate)
    write_ngram(best[1], work.write("final.ngram"))
    write_json(work.write("final.json"), {"chosen": best[0], "cased": cased, "dev_top1": scores})


def pack_final(work: Work, config: FinalSection, locale: str) -> None:
    """The final model as lm.fgram, and in other programs' formats."""
    model = read_ngram(work.read("final.ngram"))
    work.begin("Packing")
    packed = pack(model, work.write("lm.fgram"), bits=config.bits)
    for kind in config.exports:
        file, write = EXPORTS[kind]
        work.begin(f"Exporting {file}")
        write(model, work.write(file), ExportOptions(locale=locale))
    sizes = {"bytes": packed.bytes, "ngrams": packed.ngrams, "words": len(model.vocabulary)}
    write_json(work.write("package.json"), sizes)

"""The stages on models: the eight of Algorithm 1, the final one, and its files for phones and other programs.

    distill_words    A_W_e, A_W_i, A_W_m, A_W_r from R_W
    distill_pieces   A_P_e, A_P_i, A_P_m, A_P_r from R_P
    final            the best of them and the refitted one, joined with the federated unigrams, as dev users judge
    pack             lm.fgram, and exports

Counting keeps a checkpoint in the stage's folder, so that a killed stage goes on from its last shard.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from fedgram.automata.model import NGramModel
from fedgram.distill.algorithm1 import Approximations, Budget, final_models, generate
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.casing.cased_words import casing_of
from fedgram.distill.checkpoint import Checkpoint
from fedgram.distill.inferred_topology import InferenceOptions, infer_model
from fedgram.distill.network_source import NetworkSource
from fedgram.distill.nn2wfa import PieceNN2WFA, UncasedWordNN2WFA, WordNN2WFA
from fedgram.distill.sample_approx import CountingOptions
from fedgram.fgram.pack import pack
from fedgram.formats.aosp import write_combined, write_dict
from fedgram.formats.arpa import write_arpa
from fedgram.formats.artefact import read_ngram, write_ngram
from fedgram.formats.onboard import write_onboard
from fedgram.formats.openfst import write_openfst
from fedgram.formats.presage import write_presage
from fedgram.formats.word_pairs import word_pairs
from fedgram.neural.network import read_network
from fedgram.pipeline.config import BudgetConfig, DistillationConfig, FinalConfig
from fedgram.pipeline.text_stages import dev_accuracy, write_json
from fedgram.pipeline.workspace import Work
from fedgram.text.population import open_population
from fedgram.text.unigrams import read_unigrams
from fedgram.text.wordpieces import load_pieces

LETTERS = ("e", "i", "m", "r")
REFIT, UNCASED = "Refit", "Refit (uncased)"
EXPORTS = {
    "arpa": "lm.arpa", "openfst": "lm.fst", "g.fst": "G.fst", "aosp-combined": "lm.combined", "aosp-dict": "lm.dict",
    "onboard": "lm.onboard", "presage": "lm.presage.db",
}  # fmt: skip


def candidates(files: Iterable[str]) -> dict[str, str]:
    """The names of the models that came of devices, by their files: the eight, and the refitted ones."""
    named = {"refit.ngram": REFIT, "refit_uncased.ngram": UNCASED}
    named |= {file: file.removesuffix(".ngram") for by in "WP" for file in model_files(by)}
    return {file: named[file] for file in files if file in named}


def model_files(by: str) -> tuple[str, ...]:
    """The files of a network's four models."""
    return tuple(f"A_{by}_{letter}.ngram" for letter in LETTERS)


def _open(work: Work, name: str, device: str) -> NetworkSource:
    if device == "cpu":
        torch.set_num_threads(1)  # the threads that count share the cores
    return NetworkSource(read_network(work.read(name)), device)


def _counting(
    work: Work, source: NetworkSource, by: str, config: DistillationConfig, seed: int, workers: int
) -> dict[str, Any]:
    advance = work.begin(f"Counting samples of R_{by}", config.samples)
    options = CountingOptions(
        min(workers, source.most_threads), source.batch, Checkpoint(work.write("counts")), advance, shard=source.shard
    )
    return {"samples": config.samples, "seed": seed, "options": options}


def words_way(
    work: Work, config: DistillationConfig, budget: BudgetConfig, seed: int, *, device: str, workers: int
) -> tuple[WordNN2WFA | UncasedWordNN2WFA, NGramModel]:
    """NN2WFA_W, which counts when it is first asked, and the inferred topology.

    Both are kept in the stage's folder: `inferred.ngram`, and once `.counts` was asked for, `counts`.
    """
    R_W, A_W = _open(work, "R_W.safetensors", device), read_ngram(work.read("A_W.ngram"))
    capitalizer, kept = Capitalizer(A_W), work.write("inferred.ngram")
    if not kept.exists():
        work.begin("Inferring a topology from R_W", None)
        options = InferenceOptions(config.infer_samples, config.order, budget.ngrams, workers=workers)
        casing = casing_of(capitalizer, R_W.vocabulary)
        write_ngram(infer_model(R_W, options, seed=seed, casing=casing), kept)
    inferred = read_ngram(kept)
    counting = _counting(work, R_W, "W", config, seed, workers)
    if not config.uncased_first:
        return WordNN2WFA(R_W, capitalizer, [A_W, inferred], **counting), inferred
    counting["capital_samples"] = config.capital_samples
    return UncasedWordNN2WFA(R_W, capitalizer, [A_W, inferred], **counting), inferred


def pieces_way(
    work: Work, config: DistillationConfig, seed: int, *, device: str, workers: int
) -> tuple[PieceNN2WFA, NGramModel]:
    """NN2WFA_P, which counts when it is first asked, and A_W_i, whose n-grams are those of `inferred.ngram`.

    What is counted depends on the n-grams alone, so that either file may be given as A_W_i.ngram to count.
    """
    R_P, A_W = _open(work, "R_P.safetensors", device), read_ngram(work.read("A_W.ngram"))
    inferred, pieces = read_ngram(work.read("A_W_i.ngram")), load_pieces(work.read("pieces.model"))
    counting = _counting(work, R_P, "P", config, seed, workers) | {"capital_samples": config.capital_samples}
    return PieceNN2WFA(R_P, Capitalizer(A_W), [A_W, inferred], pieces=pieces, **counting), inferred


def distill_words(
    work: Work, config: DistillationConfig, budget: BudgetConfig, seed: int, *, device: str, workers: int
) -> None:
    """Gen(R_W, A_W, …, NN2WFA_W)."""
    nn2wfa, inferred = words_way(work, config, budget, seed, device=device, workers=workers)
    A_W = read_ngram(work.read("A_W.ngram"))
    _write(work, "W", generate(nn2wfa, A_W, inferred, Budget(budget.ngrams, budget.words)))


def distill_pieces(
    work: Work, config: DistillationConfig, budget: BudgetConfig, seed: int, *, device: str, workers: int
) -> None:
    """Gen(R_P, A_W, A_W_i, NN2WFA_P)."""
    nn2wfa, inferred = pieces_way(work, config, seed, device=device, workers=workers)
    A_W = read_ngram(work.read("A_W.ngram"))
    _write(work, "P", generate(nn2wfa, A_W, inferred, Budget(budget.ngrams, budget.words)))


def _write(work: Work, by: str, models: Approximations) -> None:
    for letter, model in models.by_letter().items():
        write_ngram(model, work.write(f"A_{by}_{letter}.ngram"))
    fits = {x: {"summed": fit.before, "kl_minimum": fit.after} for x, fit in models.fits.items()}
    write_json(work.write(f"distillation_{by}.json"), {"cross_entropy": fits, "warnings": models.warnings()})


def final(work: Work, cased: bool, budget: BudgetConfig) -> None:
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
    joined = final_models(model, frequency, capitalizer, Budget(budget.ngrams, budget.words))
    for way, candidate in joined.items():
        judge(f"{base}, unigrams {way}", candidate)
    write_ngram(best[1], work.write("final.ngram"))
    write_json(work.write("final.json"), {"chosen": best[0], "cased": cased, "dev_top1": scores})


def pack_final(work: Work, config: FinalConfig, locale: str) -> None:
    """The final model as lm.fgram, and in other programs' formats."""
    model = read_ngram(work.read("final.ngram"))
    work.begin("Packing", None)
    packed = pack(model, work.write("lm.fgram"), bits=config.bits)
    writers: Mapping[str, Callable[[Path], object]] = {
        "arpa": lambda path: write_arpa(model, path),
        "openfst": lambda path: write_openfst(model, path),
        "g.fst": lambda path: write_openfst(model, path, style="kaldi"),
        "aosp-combined": lambda path: write_combined(word_pairs(model, bigrams=10, words=None), path, locale=locale),
        "aosp-dict": lambda path: write_dict(word_pairs(model, bigrams=10, words=None), path, locale=locale),
        "onboard": lambda path: write_onboard(model, path),
        "presage": lambda path: write_presage(model, path),
    }
    for kind in config.exports:
        work.begin(f"Exporting {EXPORTS[kind]}", None)
        writers[kind](work.write(EXPORTS[kind]))
    sizes = {"bytes": packed.bytes, "ngrams": packed.ngrams, "words": len(model.vocabulary)}
    write_json(work.write("package.json"), sizes)

"""The stages on models: the eight of Algorithm 1, the final one, and its files for phones and other programs.

    distill_words    A_W_e, A_W_i, A_W_m, A_W_r from R_W
    distill_pieces   A_P_e, A_P_i, A_P_m, A_P_r from R_P
    paper_words      paper/A_W_e … paper/A_W_r: the same by Algorithm 1 as printed, to compare with
    paper_pieces     paper/A_P_e … paper/A_P_r
    final            the best of the eight, the refitted one and the baseline, joined with the federated unigrams
    pack             lm.fgram, and exports

Counting keeps checkpoints in the stage's folder, so that an interrupted stage resumes from its last shard.
"""

from fedgram.automata.budget import Budget
from fedgram.automata.model import NGramModel
from fedgram.core.compute import Compute
from fedgram.distill.algorithm1 import Approximations, final_models
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.distillation import DistillationOptions, Running, distill
from fedgram.distill.paper_way import distill_as_printed
from fedgram.fgram.pack import pack
from fedgram.formats.artefact import read_ngram, write_ngram
from fedgram.formats.exports import EXPORTS, ExportOptions
from fedgram.neural.network import read_network
from fedgram.pipeline.config import FinalSection
from fedgram.pipeline.model_names import BASELINE, UNCASED, candidates, fit_file, model_files
from fedgram.pipeline.text_stages import dev_accuracy, write_json
from fedgram.pipeline.workspace import Work
from fedgram.text.population import open_population
from fedgram.text.unigrams import read_unigrams


def distill_words(
    work: Work, options: DistillationOptions, budget: Budget, seed: int, *, compute: Compute, printed: bool = False
) -> None:
    """Gen(R_W, A_W, …, NN2WFA_W); `printed` is the paper's own way."""
    models = (distill_as_printed if printed else distill)(
        read_network(work.read("R_W.safetensors")), read_ngram(work.read("A_W.ngram")), options, budget=budget,
        seed=seed, running=Running(compute, folder=work.folder, begin=work.begin),
    )  # fmt: skip
    _write(work, "W", models, printed=printed)


def distill_pieces(
    work: Work, options: DistillationOptions, budget: Budget, seed: int, *, compute: Compute, printed: bool = False
) -> None:
    """Gen(R_P, A_W, A_W_i, NN2WFA_P); `printed` is the paper's own way, from its own A_W_i."""
    _, inferred, _, _ = model_files("W", printed=printed)
    models = (distill_as_printed if printed else distill)(
        read_network(work.read("R_P.safetensors")), read_ngram(work.read("A_W.ngram")), options, budget=budget,
        inferred=read_ngram(work.read(inferred)), seed=seed,
        running=Running(compute, folder=work.folder, begin=work.begin),
    )  # fmt: skip
    _write(work, "P", models, printed=printed)


def _write(work: Work, by: str, models: Approximations, *, printed: bool) -> None:
    told = work.write(fit_file(by, printed=printed))
    told.parent.mkdir(exist_ok=True)
    for file, model in zip(model_files(by, printed=printed), models.by_letter().values(), strict=True):
        write_ngram(model, work.write(file))
    fits = {x: {"summed": fit.before, "kl_minimum": fit.after} for x, fit in models.fits.items()}
    write_json(told, {"cross_entropy": fits, "warnings": models.warnings()})


def final(work: Work, cased: bool, budget: Budget) -> None:
    """The best model on dev users, alone or joined with the unigrams in the way that is best on dev users.

    The baseline competes. If it wins, no model from devices is better, and `final.json` says so.
    """
    people = open_population(work.read("users.population"))
    names = {file: name for file, name in candidates(work.inputs).items() if name != UNCASED}
    names["baseline.ngram"] = BASELINE
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
    for way, candidate in final_models(model, frequency, capitalizer, budget).items():
        judge(f"{base}, unigrams {way}", candidate)
    write_ngram(best[1], work.write("final.ngram"))
    told = {"chosen": best[0], "base": base, "baseline_is_best": base == BASELINE, "cased": cased, "dev_top1": scores}
    write_json(work.write("final.json"), told)


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

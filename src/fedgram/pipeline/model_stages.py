"""The stages on models: the eight of Algorithm 1, the final one, and its files for phones and other programs.

    distill_words    A_W_e, A_W_i, A_W_m, A_W_r from R_W, and A_W_wide for the refit
    distill_pieces   A_P_e, A_P_i, A_P_m, A_P_r from R_P
    paper_words      paper/A_W_e … paper/A_W_r: the same by Algorithm 1 as printed, to compare with
    paper_pieces     paper/A_P_e … paper/A_P_r
    final            the best of the eight, the refitted one and the baseline, joined with the federated unigrams
    pack             lm.fgram, and exports

Counting keeps checkpoints in the stage's folder, so that an interrupted stage resumes from its last shard.
"""

from collections.abc import Mapping
from functools import partial

from fedgram.automata.budget import Budget
from fedgram.core.compute import Compute
from fedgram.distill.algorithm1 import Approximations, final_models
from fedgram.distill.casing.capitalization import Capitalizer
from fedgram.distill.distillation import DistillationOptions, Running, distill
from fedgram.distill.paper_way import distill_as_printed
from fedgram.fgram.pack import pack
from fedgram.formats.artefact import read_ngram, write_ngram
from fedgram.formats.exports import EXPORTS, ExportOptions
from fedgram.neural.network import read_network
from fedgram.pipeline.config import DistillationSection, FinalSection
from fedgram.pipeline.judges import ByUsers, Judges
from fedgram.pipeline.model_names import BASELINE, REFIT, UNCASED, WIDE, candidates, fit_file, model_files
from fedgram.pipeline.text_stages import write_json
from fedgram.pipeline.workspace import Work
from fedgram.privacy.options import Protection
from fedgram.text.unigrams import read_unigrams


def distill_words(
    work: Work, options: DistillationSection, budget: Budget, seed: int, *, compute: Compute, printed: bool = False
) -> None:
    """Gen(R_W, A_W, …, NN2WFA_W), and the wide model for the refit; `printed` is the paper's own way."""
    models = (distill_as_printed if printed else partial(distill, room=options.room))(
        read_network(work.read("R_W.safetensors")), read_ngram(work.read("A_W.ngram")), options, budget=budget,
        seed=seed, running=Running(compute, folder=work.folder, begin=work.begin),
    )  # fmt: skip
    _write(work, "W", models, printed=printed)
    if models.wide is not None:
        write_ngram(models.wide, work.write(WIDE))


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


def final(work: Work, cased: bool, protection: Protection, budget: Budget, *, judges: Judges | None = None) -> None:
    """The best model on dev users, alone or joined with the unigrams in the way that is best on dev users.

    The baseline competes. If it wins, no model from devices is better, and `final.json` says so. With a threshold, the
    models whose n-grams no device has checked do not compete with the refitted one.
    """
    judges = judges or ByUsers()
    names = {name: file for file, name in candidates(work.inputs).items() if name != UNCASED}
    names[BASELINE] = "baseline.ngram"
    scores = dict(judges.top1(work, {name: work.read(file) for name, file in names.items()}, cased=cased))
    is_checked = protection == "threshold" and REFIT in names
    base = _best({name: scores[name] for name in ((REFIT, BASELINE) if is_checked else names)})
    model = read_ngram(work.read(names[base]))
    capitalizer = Capitalizer(read_ngram(work.read("A_W.ngram")))
    joined = final_models(model, read_unigrams(work.read("U.unigrams")), capitalizer, budget)
    by_name = {f"{base}, unigrams {way}": candidate for way, candidate in joined.items()}
    scores |= judges.top1(work, by_name, cased=cased)
    chosen = _best({name: scores[name] for name in (base, *by_name)})
    write_ngram({base: model, **by_name}[chosen], work.write("final.ngram"))
    told = {"chosen": chosen, "base": base, "baseline_is_best": base == BASELINE, "cased": cased, "dev_top1": scores}
    write_json(work.write("final.json"), {**told, "measured_on": judges.whom})


def _best(scores: Mapping[str, float]) -> str:
    """The first name with the highest score."""
    return max(scores, key=lambda name: scores[name])


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

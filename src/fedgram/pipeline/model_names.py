"""The n-gram models of a run: their files, and their names in results and reports."""

from collections.abc import Iterable

BASELINE, FINAL, PACKED, POOLED, MIXED = "Baseline", "Final model", "lm.fgram", "Pooled text", "Pooled + supplement"
REFIT, UNCASED, NETWORK = "Refit", "Refit (uncased)", "R_W (network)"
PAPER_WAY = " (paper)"  # after the name of a model that was made by Algorithm 1 as printed
LETTERS = ("e", "i", "m", "r")
ARCHITECTURE = "architecture_"  # before the name of a network of Figure 4
WIDE = "A_W_wide.ngram"  # the uncased model on all n-grams that the network counted, for the refit
_NAMES = {
    "baseline.ngram": BASELINE, "final.ngram": FINAL, "lm.fgram": PACKED, "pooled.ngram": POOLED,
    "interpolated.ngram": MIXED, "R_W.safetensors": NETWORK,
}  # fmt: skip


def model_files(by: str, *, printed: bool = False) -> tuple[str, ...]:
    """The files of a network's four models; `printed` are those by Algorithm 1 as printed."""
    return tuple(f"{_folder(printed)}A_{by}_{letter}.ngram" for letter in LETTERS)


def architecture_file(preset: str) -> str:
    """The file with the curve of another network of Figure 4."""
    return f"{ARCHITECTURE}{preset}.json"


def fit_file(by: str, *, printed: bool = False) -> str:
    """The file that says how well a network's models fit."""
    return f"{_folder(printed)}distillation_{by}.json"


def _folder(printed: bool) -> str:
    return "paper/" if printed else ""


def candidates(files: Iterable[str]) -> dict[str, str]:
    """The names of the models that came from devices, by their files: the eight, and the refitted ones."""
    named = {"refit.ngram": REFIT, "refit_uncased.ngram": UNCASED}
    named |= {file: file.removesuffix(".ngram") for by in "WP" for file in model_files(by)}
    return {file: named[file] for file in files if file in named}


def cases(name: str) -> tuple[bool, ...]:
    """Whether a model is measured without and with regard to capitals; one in lower case only without."""
    return (False,) if name in (UNCASED, NETWORK) else (False, True)


def evaluated(files: Iterable[str]) -> dict[str, str]:
    """The names of all models to evaluate, by their files, in the order of the files."""
    files = list(files)
    printed = {
        paper: own.removesuffix(".ngram") + PAPER_WAY
        for by in "WP"
        for own, paper in zip(model_files(by), model_files(by, printed=True), strict=True)
    }
    named = _NAMES | candidates(files) | printed
    return {file: named[file] for file in files if file in named}

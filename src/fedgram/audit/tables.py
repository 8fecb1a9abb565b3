"""What audits found, as tables and figures: for the terminal, and for the section `audits` of a report.

An audit that is given a workspace leaves its result there, as `audits/NAME.json`. `read_audits` finds all of them.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgram.audit.ngram_devices import bin_names
from fedgram.core.errors import InputError
from fedgram.core.storage import atomic_write
from fedgram.report.figures import dark_twin, draw_exposure
from fedgram.report.results import AuditTable

FOLDER, EXPOSURE = "audits", "exposure.png"
_CAPTION = "Exposure of planted secrets by the number of devices that hold them; dotted: a secret that nobody holds"
_DRAWN = ("network", "A_r", "refit none", "refit threshold", "refit dp")
Result = Mapping[str, Any]
Rows = list[tuple[str, ...]]


def keep_result(workspace: Path, name: str, result: Result) -> None:
    """Leave the result of an audit in a workspace, for its report."""
    path = workspace / FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(json.dumps(result, indent=1, ensure_ascii=False).encode() + b"\n")


def read_audits(workspace: Path, figures: Path) -> tuple[tuple[AuditTable, ...], tuple[tuple[Path, str, Path], ...]]:
    """The tables of all audits of a workspace, and their figures, drawn in a folder for light and dark pages."""
    found, drawn = list[AuditTable](), list[tuple[Path, str, Path]]()
    for name, table in TABLES.items():
        path = workspace / FOLDER / f"{name}.json"
        if not path.is_file():
            continue
        try:
            result = json.loads(path.read_text("utf-8"))
            found.append(table(result))
            if name == "canaries":
                figure = draw_exposure(_curves(result), figures / EXPOSURE, dark=True)
                drawn.append((figure, _CAPTION, dark_twin(figure)))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise InputError(path, f"does not hold the result of an audit: {error}") from None
    return tuple(found), tuple(drawn)


def _curves(result: Result) -> dict[str, list[tuple[int, float]]]:
    """Mean exposure by the number of holders, of the models that tell the story."""
    curves = {}
    for model in result["models"]:
        if model["model"] in _DRAWN:
            by_holders: dict[int, list[float]] = {}
            for cell in model["cells"]:
                by_holders.setdefault(cell["holders"], []).append(cell["mean_exposure"])
            curves[model["model"]] = [(h, sum(bits) / len(bits)) for h, bits in sorted(by_holders.items())]
    return curves


def summary(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of one model: the mean exposure of secrets that nobody holds, one device holds and more hold; what was found."""

    def mean(chosen: Sequence[Mapping[str, Any]]) -> float | None:
        total = sum(cell["canaries"] for cell in chosen)
        return sum(cell["mean_exposure"] * cell["canaries"] for cell in chosen) / total if total else None

    held = [cell for cell in cells if cell["holders"]]
    single, several = [c for c in held if c["holders"] == 1], [c for c in held if c["holders"] > 1]
    return {
        "nobody": mean([cell for cell in cells if not cell["holders"]]), "one_device": mean(single),
        "several_devices": mean(several), "extracted_of_one_device": sum(cell["extracted"] for cell in single),
        "extracted": sum(cell["extracted"] for cell in held), "held": sum(cell["canaries"] for cell in held),
    }  # fmt: skip


def canaries_table(result: Result) -> AuditTable:
    """Planted secrets: exposure and extraction by model."""
    rows: Rows = []
    for model in result["models"]:
        found = summary(model["cells"])
        bits = ("–" if found[k] is None else f"{found[k]:.1f}" for k in ("nobody", "one_device", "several_devices"))
        of_one = str(found["extracted_of_one_device"])
        rows.append((model["model"], *bits, of_one, f"{found['extracted']} of {found['held']}"))
    note = (
        f"Mean exposure in bits by the devices that hold a secret, at most {result['most_exposure']:.1f}; "
        f"{result['canaries']} secrets of {result['length']} words, of which {result['known']} are known to the search."
    )
    header = "model", "nobody", "one device", "several", "extracted: one device", "all"
    return AuditTable("Planted secrets", (note, *(f"{line}." for line in result["notes"])), header, tuple(rows))


def epsilon_table(result: Result) -> AuditTable:
    """Lower bounds on ε beside the accountant's."""
    header = "mechanism", "accountant ε", "bound", "gaussian bound", "estimate (at least)", "verdict"
    rows = []
    for row in result["audits"]:
        noise = "with noise" if row["noise"] else "without noise"
        accountant = "none" if row["accountant"] is None else f"{row['accountant']:.3f}"
        verdict = {None: "not private", True: "holds", False: "BROKEN"}[row["passed"]]
        bounds = f"{row['epsilon_bound']:.3f}", f"{row['gaussian_bound']:.3f}"
        estimate = f"{row['estimate']:.3f} ({row['estimate_low']:.3f})"
        rows.append((f"{row['mechanism']}, {noise}", accountant, *bounds, estimate, verdict))
    note = (
        "Bounds are cautious. A bound above the accountant's ε, or an estimate that exceeds it with 99.9 %, means that "
        "the mechanism is broken."
    )
    return AuditTable("ε from one run", (note,), header, tuple(rows))


def ngrams_table(result: Result) -> AuditTable:
    """N-grams by the number of devices that typed them."""
    kinds = ("not_public", "public") if result["public"] else ("devices",)
    header = ("order", *(["text"] if result["public"] else []), *(f"{name} devices" for name in bin_names()))
    rows = [
        (str(row["order"]), *([kind.replace("_", " ")] if result["public"] else []),
         *(f"{row[kind][name]:,}" for name in bin_names()))
        for row in result["orders"] for kind in kinds
    ]  # fmt: skip
    what = "typed by one device" + (" and not in the public text" if result["public"] else "")
    note = (
        f"{result['single_device']:,} of {result['ngrams']:,} n-grams are {what} ({result['users']:,} devices); "
        f"{result['below']:,} are typed by 1 to {result['min_devices'] - 1}."
    )
    return AuditTable("N-grams by devices", (note,), header, tuple(rows))


def inversion_table(result: Result) -> AuditTable:
    """What updates show."""
    rows = [
        (row["task"], row["release"], row["what"], f"{row['recovered']:.1%}", f"{row['right']:.1%}",
         f"{row['guesses']:,.0f}")
        for row in result["attacks"]
    ]  # fmt: skip
    note = f"Noise is for ε = {result['epsilon']:g} at δ = {result['delta']:g}."
    return AuditTable(
        "What updates show", (note,), ("task", "release", "what", "recovered", "right", "guesses"), tuple(rows)
    )


def poisoning_table(result: Result) -> AuditTable:
    """Backdoors and sabotage."""
    rows: Rows = []
    for row in result["rows"]:
        what = f"{row['attack']} by {100 * row['share']:g} %" if row["attack"] else "honest"
        for name in ("network", "ngram"):
            if name in row:
                found = row[name]
                change = "" if found["change"] is None else f"{found['change']:+.2f} %"
                shares = f"{found['success']:.0%}", f"{found['shown']:.0%}"
                of_row = f"{row['defence']}, {what}", str(row["liars"]), name.replace("ngram", "n-gram")
                rows.append((*of_row, *shares, f"{found['top1']:.2f} %", change))
    note = (
        f"{result['backdoors']} backdoors, {result['users']:,} devices. `first`: the attacker's word is the first "
        "suggestion; `shown`: one of three. Changes of top-1 are relative to honest devices with the same defence."
    )
    header = "defence, attack", "lying devices", "model", "first", "shown", "top-1", "change"
    return AuditTable("Poisoning", (note,), header, tuple(rows))


def membership_table(result: Result) -> AuditTable:
    """Whether users' text was used."""
    interval = result["auc_ci95"]
    auc = f"{result['auc']:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")
    found = {f"{float(share):.0%}": f"{rate:.1%}" for share, rate in result["found_at_false_positives"].items()}
    header = "members", "others", "AUC", *(f"found at {share} false positives" for share in found)
    row = f"{result['members']:,}", f"{result['others']:,}", auc, *found.values()
    note = "The AUC is 0.5 if the model shows nothing; the interval takes users as the unit."
    return AuditTable("Membership of users", (note,), header, (row,))


TABLES: dict[str, Callable[[Result], AuditTable]] = {
    "canaries": canaries_table, "ngrams": ngrams_table, "epsilon": epsilon_table, "inversion": inversion_table,
    "poisoning": poisoning_table, "membership": membership_table,
}  # fmt: skip

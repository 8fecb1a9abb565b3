"""Whether a run was worth it: is the final model better than the baseline on held-out users?"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedgram.evaluate.jackknife import Estimate
from fedgram.pipeline.model_names import BASELINE, FINAL
from fedgram.report.headline import is_too_wide, result_sentence


@dataclass(frozen=True, slots=True)
class Verdict:
    """Top-1 accuracy of the baseline and of the final model in per cent, the result in a sentence, and warnings."""

    better: bool
    baseline: Estimate
    final: Estimate
    sentence: str
    warnings: tuple[str, ...]


def verdict(
    final: Mapping[str, Any], evaluation: Mapping[str, Any], population: Mapping[str, int] | None = None
) -> Verdict:
    """The verdict from `final.json`, `evaluation.json` and `population.json`, where users are counted.

    The final model is better if the whole 95 % interval is above 0. If it is the baseline itself, nothing was compared.
    """
    warnings = [_baseline_is_best(final)] if final["baseline_is_best"] else []
    models = evaluation["cased" if final["cased"] else "uncased"]["models"]
    old, new = (_estimate(models[name]["top1"]) for name in (BASELINE, FINAL))
    if is_baseline(final):
        return Verdict(False, old, new, _no_better(final, population or {}), tuple(warnings))
    found = models[FINAL]["change"]["top1"]
    measured_on = evaluation.get("measured_on", "users")
    change, whom = _change(found), f"{evaluation['users']:,} {evaluation['split']} {measured_on}"
    better = found["ci95"] is not None and found["ci95"][0] > 0
    if found["ci95"] is not None and found["ci95"][1] < 0:
        warnings.append(f"the final model is worse than the baseline on {whom}: top-1 changes by {change}")
    elif not better and is_too_wide(_estimate(found)):
        warnings.append(
            f"{whom} are too few to tell the final model from the baseline: top-1 changes by {change}; "
            "measure more users before you conclude anything"
        )
    elif not better:
        warnings.append(
            f"the final model is not significantly better than the baseline on {whom}: top-1 changes by {change}"
        )
    sentence = result_sentence(FINAL, new, BASELINE, old, _estimate(found), whom)
    return Verdict(better, old, new, sentence, tuple(warnings))


def is_baseline(final: Mapping[str, Any]) -> bool:
    """Whether the final model is the baseline as it is, without unigrams from devices."""
    return bool(final["chosen"] == BASELINE)


def _baseline_is_best(final: Mapping[str, Any]) -> str:
    best, top1 = _best_from_devices(final)
    return (
        f"the baseline is the best model on dev {_measured_on(final)} ({final['dev_top1'][BASELINE]:.2f} % top-1), so "
        f"the final model is {'it' if is_baseline(final) else 'made from it'}; the best model from devices is {best} "
        f"({top1:.2f} %)"
    )


def _no_better(final: Mapping[str, Any], population: Mapping[str, int]) -> str:
    """The result if the final model is the baseline; `population` may not know how many dev users there are."""
    best, top1 = _best_from_devices(final)
    number = f"{population['dev_users']:,} " if "dev_users" in population else ""
    return (
        f"The final model is the baseline: no model from devices was better on {number}dev {_measured_on(final)} "
        f"(best: {best}, {top1:.1f} % against {final['dev_top1'][BASELINE]:.1f} %)."
    )


def _best_from_devices(final: Mapping[str, Any]) -> tuple[str, float]:
    others = {name: top1 for name, top1 in final["dev_top1"].items() if not name.startswith(BASELINE)}
    best = max(others, key=lambda name: others[name])
    return best, others[best]


def _measured_on(final: Mapping[str, Any]) -> str:
    return str(final.get("measured_on", "users"))


def _estimate(found: Mapping[str, Any]) -> Estimate:
    value = float("nan") if found["value"] is None else found["value"]
    return Estimate(value, tuple(found["ci95"]) if found["ci95"] else None)


def _change(found: Mapping[str, Any]) -> str:
    if found["value"] is None:
        return "an unknown amount"
    if found["ci95"] is None:
        return f"{found['value']:+.2f} %, without an interval, as there are too few of them"
    low, high = found["ci95"]
    return f"{found['value']:+.2f} % (95 % interval {low:+.2f} to {high:+.2f} %)"

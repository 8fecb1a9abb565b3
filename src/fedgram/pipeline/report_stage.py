"""The last stage: all results of a run as one page, with its Markdown twin."""

import json
from collections.abc import Callable, Mapping
from math import isinf
from pathlib import Path
from typing import Any

from fedgram import __version__
from fedgram.evaluate.jackknife import Estimate
from fedgram.federated.convergence import Convergence
from fedgram.pipeline.config import RefitConfig, RunConfig
from fedgram.pipeline.evaluation_stages import BASELINE, FINAL, POOLED
from fedgram.pipeline.strict_toml import to_toml
from fedgram.pipeline.text_stages import write_json
from fedgram.pipeline.workspace import Work
from fedgram.report.figures import (
    draw_accuracies,
    draw_distribution_convergence,
    draw_likelihood,
    draw_tail_words,
)  # fmt: skip
from fedgram.report.page import write_report
from fedgram.report.published import LANGUAGES
from fedgram.report.results import read_results

Z, TAIL, CURVES, ACCURACY = "distribution-convergence.png", "tail-words.png", "likelihood.png", "accuracy.png"


def report_files(config: RunConfig) -> tuple[str, ...]:
    """What the stage writes: figures of what the run itself did."""
    names = ["report.html", "report.md", "results.json", ACCURACY]
    if config.unigrams.counts is None:
        names += [Z, TAIL]
    if config.words.network is None or (config.pieces.use and config.pieces.network is None):
        names.append(CURVES)
    return tuple(f"report/{name}" for name in names)


def report(work: Work, config: RunConfig, timings: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
    """Gather, draw and write."""
    work.begin("Writing the report", None)
    told = {name.removesuffix(".json"): json.loads(work.read(name).read_text("utf-8")) for name in work.inputs}
    folder = work.write("report")
    folder.mkdir(exist_ok=True)
    language, found = config.population.language, told["evaluation"]
    results = {
        "title": f"{config.title}, {LANGUAGES[language]}",
        "about": _about(config, told),
        "languages": {language: found["uncased"]},
        "cased": {language: found["cased"]},
        "experiment": found.get("experiment"),
        "clipping": told.get("clipping"),
        "sizes": found["sizes"] + _networks(told),
        "figures": _draw(folder, config, told),
        "examples": found["examples"],
        "stages": [
            {"name": name, "seconds": noted["seconds"], "peak_bytes": noted["peak_bytes"]}
            for name, noted in timings().items()
            if name != "report"
        ],
        "privacy": _privacy(config, told),
        "config": to_toml(_without_folders(config)),
    }
    write_json(folder / "results.json", results)
    write_report(read_results(folder / "results.json"), folder)


def _about(config: RunConfig, told: Mapping[str, Any]) -> dict[str, Any]:
    people, found, final = told["population"], told["evaluation"], told["final"]
    about: dict[str, Any] = {
        "language": LANGUAGES[config.population.language],
        "users": f"{people['train_users']:,} train, {people['dev_users']:,} dev, {people['test_users']:,} test; "
        + ("from a file" if config.population.users else "generated"),
        "their text": f"{people['sentences']:,} sentences, {people['words']:,} words",
        "evaluated on": f"{found['users']:,} {found['split']} users, {found['words']:,} typed words",
    }
    for name in ("R_W", "R_P"):
        if name in told:
            network = told[name]
            kind = f"{network['preset']}, " if network["preset"] else ""
            about[f"network {name}"] = f"{kind}{network['parameters']:,} weights, {_trained(network)}"
    d = config.distillation
    levels = {name: model["top1"]["value"] for name, model in found["uncased"]["models"].items()}
    if POOLED in levels:
        text = f"{levels[POOLED]:.2f} % top-1 by a model of the pooled text, as large as the others"
        gain, most = levels[FINAL] - levels[BASELINE], levels[POOLED] - levels[BASELINE]
        if gain > 0 and most > 0:
            text += f"; the final model goes {100 * gain / most:.0f} % of the way there from the baseline"
        about["if text were collected"] = text
    if "refit" in told:
        counted = told["refit"]
        about["refit"] = (
            f"{counted['passes'][-1]['reports']:,} devices counted {counted['words_counted']:,} words at "
            f"{counted['ngrams_counted']:,} n-grams"
        )
    about |= {
        "distillation": f"{d.samples:,} samples a network, at most {config.budget.ngrams:,} n-grams a model",
        "final model": f"{final['chosen']}, the best on dev users ({final['dev_top1'][final['chosen']]:.2f} % top-1)",
        "lm.fgram": f"{told['package']['bytes'] / 1e6:.2f} MB, {told['package']['ngrams']:,} n-grams, "
        f"{told['package']['words']:,} words",
        "seed": str(config.seed),
        "fedgram": __version__,
    }
    return about


def _trained(network: Mapping[str, Any]) -> str:
    if network.get("given"):
        return "trained elsewhere"
    best = next((p for p in network["dev"] if p["round"] == network["best_round"]), network["before"])
    return (
        f"{len(network['loss'])} rounds, SLL^e {network['before']['sll_e']:.2f} → {best['sll_e']:.2f} a dev sentence "
        f"(round {network['best_round']})"
    )


def _networks(told: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "model": f"{name} (network)",
            "ngrams": None,
            "bytes": 4 * told[name]["parameters"],
        }
        for name in ("R_W", "R_P")
        if name in told
    ]


def _draw(folder: Path, config: RunConfig, told: Mapping[str, Any]) -> list[dict[str, str]]:
    figures, unigrams = [], told["unigrams"]
    if "z" in unigrams:
        convergence = Convergence(*(unigrams[k] for k in ("z", "unique", "new", "moving_average")))
        draw_distribution_convergence(convergence, folder / Z)
        caption = "Figure 2 (a): the Z statistic of the unigrams, first half of the rounds against the second"
        figures.append({"file": Z, "caption": caption})
        draw_tail_words(convergence, folder / TAIL, capacity=config.budget.words, whitelist=unigrams["whitelist"])
        caption = "Figure 2 (b): words seen so far, and rounds that still bring new ones"
        figures.append({"file": TAIL, "caption": caption})
    curves = {
        f"{name} ({told[name]['preset']})": [
            (p["round"], p["sll_e"]) for p in (told[name]["before"], *told[name]["dev"])
        ]
        for name in ("R_W", "R_P")
        if name in told and told[name]["dev"]
    }
    if curves:
        draw_likelihood(curves, folder / CURVES)
        caption = "Figure 4: SLL^e of dev sentences by round of federated training; round 0 is the warm start"
        figures.append({"file": CURVES, "caption": caption})
    levels = {name: _estimate(model["top1"]) for name, model in told["evaluation"]["uncased"]["models"].items()}
    draw_accuracies(levels, folder / ACCURACY, baseline=BASELINE)
    figures.append({"file": ACCURACY, "caption": "Top-1 accuracy, whatever the capitals, with 95 % intervals"})
    return figures


def _estimate(figure: Mapping[str, Any]) -> Estimate:
    return Estimate(figure["value"], tuple(figure["ci95"]) if figure["ci95"] else None)


def _privacy(config: RunConfig, told: Mapping[str, Any]) -> dict[str, Any]:
    u, t = told["unigrams"], config.training
    clip = "any number" if u["clip"] is None else f"at most {u['clip']:,g}"
    limit = "of any length" if isinf(t.update_norm) else f"shortened to a norm of {t.update_norm:g}"
    trained = [name for name in ("R_W", "R_P") if name in told and not told[name].get("given")]
    reports = ", ".join(f"{told[name]['reports']:,} for {name}" for name in trained)
    most = u.get("participations", 1)
    again = f"; simulated devices stand for many, and one took part in {most:,} rounds" if most > 1 else ""
    asked = "no device is asked again"
    if config.refit.run:
        asked = "for the refit devices are asked once more"
    privacy = {
        "unigrams": f"a device sends counts of whitelisted words, {clip} a report; {u['reports']:,} reports summed"
        + again,
        "networks": f"a device sends a change of weights, {limit}; {reports} reports summed"
        if trained
        else "trained elsewhere",
        "n-gram models": f"from the networks' samples and the sums; {asked}",
        "dev and test users": "take no part in training; they judge",
        "noise, secure sums": "none in this run: devices are simulated, and a server would see each report",
    }
    if config.refit.run:
        privacy["refit"] = _counted_ngrams(config.refit, told["refit"])
    if config.baselines.pooled:
        privacy["pooled baselines"] = "read the train users' text, to compare with; nothing else uses them"
    return privacy


def _counted_ngrams(config: RefitConfig, told: Mapping[str, Any]) -> str:
    """What devices send in the refit, and what the result may show of them."""
    passes = told["passes"]
    per_report = ", ".join(f"{p['bytes_a_report'] / 1000:,.1f}" for p in passes)
    text = f"in {len(passes)} passes a device sends " + (
        f"marks in a sketch of its pairs of words, by which the server finds those that {config.least} devices have, "
        "and "
        if config.pairs
        else ""
    )
    text += (
        f"counts of n-grams that the server proposes, of at most {config.clip:,g} words a pass"
        f"{'' if isinf(config.ngram_clip) else f' and {config.ngram_clip:,g} at one n-gram'}; "
        f"{passes[-1]['reports']:,} devices, {per_report} KB a report"
    )
    if config.pairs or config.grow:
        text += "; an n-gram that grew may be of a single device"
    return text


def _without_folders(config: RunConfig) -> RunConfig:
    """The configuration as others may read it: files by their names alone."""
    return config.with_files({(section, key): Path(path).name for section, key, path in config.files()})

"""The last stage: the report of a run, as an HTML page and as Markdown."""

import json
from collections.abc import Callable, Mapping
from math import isinf
from pathlib import Path
from typing import Any

from fedgram import __version__
from fedgram.core.toml_config import to_toml
from fedgram.distill.refit.refit import RefitOptions
from fedgram.evaluate.jackknife import Estimate
from fedgram.federated.convergence import Convergence
from fedgram.pipeline.config import RunConfig
from fedgram.pipeline.evaluation_stages import BASELINE, FINAL, POOLED
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
    """The files of the stage; figures only of stages that are part of the run."""
    names = ["report.html", "report.md", "results.json", ACCURACY]
    if config.unigrams.counts is None:
        names += [Z, TAIL]
    if config.words.network is None or (config.pieces.use and config.pieces.network is None):
        names.append(CURVES)
    return tuple(f"report/{name}" for name in names)


def report(work: Work, config: RunConfig, timings: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
    """Collect the results, draw the figures and write the report."""
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
        + ("read from a file" if config.population.users else "synthetic"),
        "text of all users": f"{people['sentences']:,} sentences, {people['words']:,} words",
        "evaluated on": f"{found['users']:,} {found['split']} users, {found['words']:,} typed words",
    }
    for name in ("R_W", "R_P"):
        if name in told:
            network = told[name]
            kind = f"{network['preset']}, " if network["preset"] else ""
            about[f"network {name}"] = f"{kind}{network['parameters']:,} parameters, {_trained(network)}"
    d = config.distillation
    levels = {name: model["top1"]["value"] for name, model in found["uncased"]["models"].items()}
    if POOLED in levels:
        text = f"{levels[POOLED]:.2f} % top-1, by an n-gram model of the pooled text with the same size limit."
        gain, most = levels[FINAL] - levels[BASELINE], levels[POOLED] - levels[BASELINE]
        if gain > 0 and most > 0:
            text += f" The final model closes {100 * gain / most:.0f} % of the gap between the baseline and this bound."
        about["pooled-text upper bound"] = text
    if "refit" in told:
        counted = told["refit"]
        about["refit"] = (
            f"{counted['passes'][-1]['reports']:,} devices counted {counted['words_counted']:,} words in "
            f"{counted['ngrams_counted']:,} n-grams"
        )
    about |= {
        "distillation": f"{d.samples:,} samples per network, at most {config.budget.max_ngrams:,} n-grams per model",
        "final model": f"{final['chosen']}, the best on dev users ({final['dev_top1'][final['chosen']]:.2f} % top-1)",
        "lm.fgram": f"{told['package']['bytes'] / 1e6:.2f} MB, {told['package']['ngrams']:,} n-grams, "
        f"{told['package']['words']:,} words",
        "seed": str(config.seed),
        "fedgram": __version__,
    }
    return about


def _trained(network: Mapping[str, Any]) -> str:
    if network.get("given"):
        return "trained outside this run"
    best = next((p for p in network["dev"] if p["round"] == network["best_round"]), network["before"])
    return (
        f"{len(network['loss'])} rounds, SLL^e per dev sentence {network['before']['sll_e']:.2f} → {best['sll_e']:.2f} "
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
        caption = "Figure 2 (a): the Z statistic between the unigrams of the first and the second half of the rounds"
        figures.append({"file": Z, "caption": caption})
        draw_tail_words(convergence, folder / TAIL, capacity=config.budget.max_words, whitelist=unigrams["whitelist"])
        caption = "Figure 2 (b): words seen so far, and the share of recent rounds with new words"
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
        caption = "Figure 4: SLL^e per dev sentence by round of federated training; round 0 is the initial network"
        figures.append({"file": CURVES, "caption": caption})
    levels = {name: _estimate(model["top1"]) for name, model in told["evaluation"]["uncased"]["models"].items()}
    draw_accuracies(levels, folder / ACCURACY, baseline=BASELINE)
    figures.append({"file": ACCURACY, "caption": "Top-1 accuracy, case-insensitive, with 95 % intervals"})
    return figures


def _estimate(figure: Mapping[str, Any]) -> Estimate:
    return Estimate(figure["value"], tuple(figure["ci95"]) if figure["ci95"] else None)


def _privacy(config: RunConfig, told: Mapping[str, Any]) -> dict[str, Any]:
    u, t = told["unigrams"], config.training
    clip = "any number of words" if u["clip"] is None else f"at most {u['clip']:,g} words"
    limit = "of any norm" if isinf(t.update_norm) else f"clipped to the norm {t.update_norm:g}"
    trained = [name for name in ("R_W", "R_P") if name in told and not told[name].get("given")]
    reports = ", ".join(f"{told[name]['reports']:,} for {name}" for name in trained)
    most = u.get("participations", 1)
    again = f"; a simulated device stands for many devices, and took part in up to {most:,} rounds" if most > 1 else ""
    asked = "devices send nothing more"
    if config.refit.run:
        asked = "only the refit asks devices again"
    privacy = {
        "unigrams": f"each device sends counts of whitelisted words, {clip} per report; {u['reports']:,} reports summed"
        + again,
        "networks": f"each device sends a change of the weights, {limit}; reports summed: {reports}"
        if trained
        else "trained outside this run",
        "n-gram models": f"computed from the networks' samples and the sums; {asked}",
        "dev and test users": "not used for training, only for model selection and evaluation",
        "noise, secure aggregation": "not used in this run: devices are simulated, and a server would see each report",
    }
    if config.refit.run:
        privacy["refit"] = _counted_ngrams(config.refit, told["refit"])
    if config.baselines.pooled:
        privacy["pooled baselines"] = "trained on the train users' text, only for comparison"
    return privacy


def _counted_ngrams(config: RefitOptions, told: Mapping[str, Any]) -> str:
    """What devices send in the refit, and what the result may reveal."""
    passes = told["passes"]
    per_report = ", ".join(f"{p['bytes_per_report'] / 1000:,.1f}" for p in passes)
    text = f"in {len(passes)} passes, each device sends " + (
        f"marks in a sketch of its word pairs, from which the server finds those of at least {config.min_devices} "
        "devices, and "
        if config.pairs
        else ""
    )
    text += (
        f"counts of n-grams that the server proposes, at most {config.clip:,g} words per pass"
        f"{'' if isinf(config.ngram_clip) else f' and {config.ngram_clip:,g} per n-gram'}; "
        f"{passes[-1]['reports']:,} devices, {per_report} KB per report"
    )
    if config.pairs or config.grow:
        text += "; an n-gram that was added may come from a single device"
    return text


def _without_folders(config: RunConfig) -> RunConfig:
    """The configuration with file names only: other people need not see the folders."""
    return config.with_files({(section, key): Path(path).name for section, key, path in config.files()})

"""The last stage: the report of a run, as an HTML page and as Markdown."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedgram.core.toml_config import to_toml
from fedgram.federated.convergence import Convergence
from fedgram.neural.new_network import presets
from fedgram.pipeline.config import RunConfig
from fedgram.pipeline.model_names import ARCHITECTURE
from fedgram.pipeline.report_facts import Told, about, privacy, ways, whom
from fedgram.pipeline.text_stages import write_json
from fedgram.pipeline.verdict import is_baseline, verdict
from fedgram.pipeline.workspace import Work
from fedgram.report.figures import dark_twin, draw_distribution_convergence, draw_likelihood, draw_tail_words
from fedgram.report.page import write_report
from fedgram.report.published import LANGUAGES
from fedgram.report.results import read_results

Z, TAIL, CURVES = "distribution-convergence.png", "tail-words.png", "likelihood.png"
Curves = dict[str, list[tuple[int, float]]]


def report_files(config: RunConfig, told: tuple[str, ...]) -> tuple[str, ...]:
    """The files of the stage; figures only of stages that are part of the run. `told` are the stage's inputs."""
    names, figures = ["report.html", "report.md", "results.json"], []
    if config.unigrams.counts is None and not config.privacy.is_dp:  # with noise, the rounds' sums are not known
        figures += [Z, TAIL]
    words, pieces = (own.network is None and own.training.dev_users > 0 for own in (config.words, config.pieces))
    if words or (pieces and config.pieces.use) or any(map(_is_architecture, told)):
        figures.append(CURVES)
    return tuple(f"report/{name}" for name in (*names, *(n for f in figures for n in (f, dark_twin(Path(f)).name))))


def report(work: Work, config: RunConfig, timings: Callable[[], Mapping[str, Mapping[str, Any]]]) -> None:
    """Collect the results, draw the figures and write the report."""
    work.begin("Writing the report", None)
    told = {name.removesuffix(".json"): json.loads(work.read(name).read_text("utf-8")) for name in work.inputs}
    folder = work.write("report")
    folder.mkdir(exist_ok=True)
    language, found = config.population.language, told["evaluation"]
    judged = verdict(told["final"], found, told["population"])
    results = {
        "title": f"{config.title}, {LANGUAGES[language]}",
        "measured": f"{found['users']:,} {whom(found)}",
        "result": judged.sentence if is_baseline(told["final"]) else None,
        "warnings": list(judged.warnings),
        "about": about(config, told),
        "languages": {language: found["uncased"]},
        "cased": {language: found["cased"]},
        "ways": ways(config),
        "experiment": found.get("experiment"),
        "clipping": told.get("clipping"),
        "architectures": _architectures(told),
        "sizes": found["sizes"] + _networks(told),
        "figures": _draw(folder, config, told),
        "examples": found["examples"],
        "stages": [
            {"name": name, "seconds": noted["seconds"], "peak_bytes": noted["peak_bytes"]}
            for name, noted in timings().items()
            if name != "report"
        ],
        "privacy": privacy(config, told),
        "config": to_toml(_without_folders(config)),
        "files": _digests(config, timings()),
    }
    write_json(folder / "results.json", results)
    write_report(read_results(folder / "results.json"), folder)


def _digests(config: RunConfig, stages: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """SHA-256 of the text that the run was given, by file name, and of the files that its stages wrote."""
    inputs = stages.get("population", {}).get("inputs", {})
    found = {Path(path).name: inputs[key] for _, key, path in config.files() if key in inputs}
    for name, noted in stages.items():
        if name != "report":
            found |= {file: about["sha256"] for file, about in sorted(noted["files"].items())}
    return found


def _trained_networks(told: Told) -> dict[str, Mapping[str, Any]]:
    """The networks that this run trained, by preset: R_W, R_P, and the others of Figure 4."""
    trained = [network for name, network in told.items() if name in ("R_W", "R_P") or _is_architecture(name)]
    return {network["preset"]: network for network in trained if network["dev"]}


def _is_architecture(name: str) -> bool:
    return name.startswith(ARCHITECTURE)


def _points(network: Mapping[str, Any]) -> list[tuple[int, float]]:
    """(round, SLL^e per dev sentence), from the start on."""
    start = [network["before"]] if network.get("before") else []
    return [(point["round"], point["sll_e"]) for point in (*start, *network["dev"])]


def _architectures(told: Told) -> list[dict[str, Any]]:
    """Table 2, with the best SLL^e and the size of the networks that this run trained."""
    trained = {
        name: {"sll_e": max(value for _, value in _points(n)), "trained_parameters": n["parameters"] / 1e6}
        for name, n in _trained_networks(told).items()
    }
    neither = {"sll_e": None, "trained_parameters": None}
    return [{**row, **trained.get(row["preset"], neither)} for row in presets() if row["paper_total"] is not None]


def _networks(told: Told) -> list[dict[str, Any]]:
    return [
        {"model": f"{name} (network)", "ngrams": None, "bytes": 4 * told[name]["parameters"]}
        for name in ("R_W", "R_P")
        if name in told
    ]


def _draw(folder: Path, config: RunConfig, told: Told) -> list[dict[str, str]]:
    figures, unigrams = [], told["unigrams"]
    if "z" in unigrams:
        convergence = Convergence(*(unigrams[k] for k in ("z", "unique", "new", "moving_average")))
        draw_distribution_convergence(convergence, folder / Z, dark=True)
        caption = "Figure 2 (a): the Z statistic between the unigrams of the first and the second half of the rounds"
        figures.append(_figure(Z, caption))
        words = {"capacity": config.budget.max_words, "whitelist": unigrams["whitelist"]}
        draw_tail_words(convergence, folder / TAIL, **words, dark=True)
        caption = "Figure 2 (b): words seen so far, and the share of recent rounds with new words"
        figures.append(_figure(TAIL, caption))
    curves, chosen = _curves(told)
    if curves:
        draw_likelihood(curves, folder / CURVES, chosen=chosen, dark=True)
        caption = "Figure 4: SLL^e per dev sentence by round of federated training; round 0 is the initial network"
        if len(curves) > len(chosen):
            caption += "; solid lines are the networks of this run's models"
        figures.append(_figure(CURVES, caption))
    return figures


def _figure(file: str, caption: str) -> dict[str, str]:
    return {"file": file, "caption": caption, "dark": dark_twin(Path(file)).name}


def _curves(told: Told) -> tuple[Curves, list[str]]:
    """The curves of Figure 4, and which of them are the networks that were distilled."""
    distilled = {told[name]["preset"]: name for name in ("R_W", "R_P") if name in told}
    curves: Curves = {}
    chosen = []
    for preset, network in _trained_networks(told).items():
        name = f"{distilled[preset]} ({preset})" if preset in distilled else preset
        curves[name] = _points(network)
        chosen += [name] if preset in distilled else []
    return curves, chosen


def _without_folders(config: RunConfig) -> RunConfig:
    """The configuration with file names only: other people need not see the folders."""
    return config.with_files({(section, key): Path(path).name for section, key, path in config.files()})

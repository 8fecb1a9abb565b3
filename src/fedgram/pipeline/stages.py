"""The whole paper as stages: which files each reads and writes, and what of the configuration it depends on.

    population → unigrams → external → pretrain_words → train_words → pieces → pretrain_pieces → train_pieces
    → distill_words → distill_pieces → refit → baselines → final → pack → paper_words → paper_pieces → architecture_…
    → evaluation → clipping → report

Stages that run at the same time begin in this order, so what no model needs, the curves of other networks, comes late.

Unigrams, word pieces and networks may come from elsewhere: the configuration names their files, and their stages check
and copy them.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

from fedgram.core.compute import Compute
from fedgram.core.errors import FedgramError
from fedgram.formats.exports import EXPORTS
from fedgram.neural.model import PRESETS
from fedgram.pipeline import (
    baseline_stage,
    clipping_stage,
    evaluation_stages,
    model_stages,
    network_stages,
    refit_stage,
    text_stages,
)
from fedgram.pipeline.config import RunConfig
from fedgram.pipeline.judges import ByUsers
from fedgram.pipeline.model_names import ARCHITECTURE, WIDE, architecture_file, fit_file, model_files
from fedgram.pipeline.report_stage import report, report_files
from fedgram.pipeline.workspace import Stage, Work

USERS, SERVER_TEXT = ("users.population",), ("supplement.txt", "whitelist.txt")
Timings = Callable[[], Mapping[str, Mapping[str, Any]]]


def run_stages(config: RunConfig, *, compute: Compute | None = None, timings: Timings = lambda: {}) -> list[Stage]:
    """The stages of a run, in order; `timings` says what the manifest knows of those before the report."""
    compute, config = compute or Compute(), config.without_users() if config.population.is_on_devices else config
    return [
        *_text_stages(config),
        *_network_stages(config, "words", (), compute),
        *(_piece_stages(config, compute) if config.pieces.use else []),
        *_distilling_stages(config, compute),
        *_refit_stages(config),
        *_baseline_stages(config),
        *_final_stages(config),
        *(_distilling_stages(config, compute, printed=True) if config.paper_way.run else []),
        *_architecture_stages(config, compute),
        *_measuring_stages(config, compute, timings),
    ]


def stage_names(config: RunConfig, until: str | None = None) -> list[str]:
    """The names of the stages, up to one of them."""
    names = [stage.name for stage in run_stages(config)]
    if until is not None and until not in names:
        raise FedgramError(f"there is no stage {until!r}; the stages are {', '.join(names)}")
    return names if until is None else names[: names.index(until) + 1]


def _text_stages(c: RunConfig) -> list[Stage]:
    p = c.population
    generated = replace(p, users=None, supplement=None, whitelist=None)
    files = _named(users=p.users, supplement=p.supplement, whitelist=p.whitelist)
    return [
        _stage(
            "population", (*_text(c), "population.json"), text_stages.population, generated, c.seed, sources=files
        ),
        _stage(
            "unigrams", ("U.unigrams", "unigrams.json"), text_stages.unigrams, replace(c.unigrams, counts=None),
            c.privacy.of_unigrams, c.seed,
            inputs=(*_users(c), "whitelist.txt"), sources=_named(counts=c.unigrams.counts),
        ),
        _stage(
            "external", ("A_W.ngram",), text_stages.external, c.external, c.budget,
            inputs=("supplement.txt", "whitelist.txt"),
        ),
    ]  # fmt: skip


def _piece_stages(c: RunConfig, compute: Compute) -> list[Stage]:
    pieces = _stage(
        "pieces", ("pieces.model",), text_stages.pieces, c.pieces.size,
        inputs=("U.unigrams",), sources=_named(model=c.pieces.model),
    )  # fmt: skip
    return [pieces, *_network_stages(c, "pieces", pieces.outputs, compute)]


def _architecture_stages(c: RunConfig, compute: Compute) -> list[Stage]:
    return [
        _stage(
            f"{ARCHITECTURE}{preset}", (architecture_file(preset),),
            partial(network_stages.architecture, compute=compute),
            preset, c.architectures.rounds, known_words(c), c.pieces.pretraining, c.pieces.training, c.seed,
            inputs=(*_users(c), "supplement.txt", "U.unigrams"),
            after=("R_W.json", "R_P.json"),  # no other stage needs what they find, so they leave the GPU to those
        )
        for preset in _architectures(c)
    ]  # fmt: skip


def _architectures(c: RunConfig) -> tuple[str, ...]:
    """The other networks of Figure 4, if they are wanted."""
    return tuple(dict.fromkeys(c.architectures.presets)) if c.pieces.use and c.architectures.run else ()


def _network_stages(c: RunConfig, what: str, pieces: tuple[str, ...], compute: Compute) -> list[Stage]:
    """A warm start and federated training, or one stage that takes a network over."""
    own, name = (c.pieces, "R_P") if what == "pieces" else (c.words, "R_W")
    outputs, words = (f"{name}.safetensors", f"{name}.json"), ("U.unigrams", *pieces)
    if own.network is not None:
        take = partial(network_stages.take_network, name=name)
        return [_stage(f"train_{what}", outputs, take, inputs=words, sources={"network": own.network})]
    start = f"{name}_start.safetensors"
    pretrain = partial(network_stages.pretrain, name=name, compute=compute)
    train = partial(network_stages.train_network, name=name, compute=compute)
    return [
        _stage(
            f"pretrain_{what}", (start,), pretrain, own.preset, known_words(c), own.pretraining, c.seed,
            inputs=("supplement.txt", *words),
        ),
        _stage(
            f"train_{what}", outputs, train, own.training, c.privacy.of_network(c.trained), c.seed,
            inputs=(*_users(c), start),
        ),
    ]  # fmt: skip


def known_words(c: RunConfig) -> int:
    """The size of 𝒱, over which SLL^e of all networks is measured: that of the network of words."""
    return PRESETS[c.words.preset].shape.words


def _distilling_stages(c: RunConfig, compute: Compute, *, printed: bool = False) -> list[Stage]:
    """The eight models, our way or as Algorithm 1 is printed."""
    options, way = c.distillation, "paper" if printed else "distill"
    if printed:
        options = replace(options, uncased_first=False, samples=c.paper_way.samples or options.samples)
    settings = options, c.budget, c.seed
    words, pieces = model_files("W", printed=printed), model_files("P", printed=printed)
    stages = [
        _stage(
            f"{way}_words", (*words, fit_file("W", printed=printed), *([] if printed else [WIDE])),
            partial(model_stages.distill_words, compute=compute, printed=printed), *settings,
            inputs=("A_W.ngram", "R_W.safetensors"),
        ),
        _stage(
            f"{way}_pieces", (*pieces, fit_file("P", printed=printed)),
            partial(model_stages.distill_pieces, compute=compute, printed=printed), *settings,
            inputs=("A_W.ngram", words[1], "R_P.safetensors"),
        ),
    ]  # fmt: skip
    return stages if c.pieces.use else stages[:1]


def _refit_stages(c: RunConfig) -> list[Stage]:
    if not c.refit.run:
        return []
    inputs = (*_users(c), "A_W.ngram", WIDE)
    settings = c.refit, c.privacy.of_ngrams, c.budget, c.seed
    return [_stage("refit", refit_stage.OUTPUTS, refit_stage.refit, *settings, inputs=inputs)]


def _baseline_stages(c: RunConfig) -> list[Stage]:
    outputs = ("baseline.ngram", "baselines.json", *_pooled(c))
    return [_stage("baselines", outputs, baseline_stage.baselines, c.baselines, c.budget, inputs=_text(c))]


def _final_stages(c: RunConfig) -> list[Stage]:
    exports = tuple(EXPORTS[kind].file for kind in dict.fromkeys(c.final.exports))
    return [
        _stage(
            "final", ("final.ngram", "final.json"), model_stages.final, c.final.cased, c.privacy.protection,
            c.budget, inputs=(*_users(c), "U.unigrams", "A_W.ngram", "baseline.ngram", *_eight(c), *_refitted(c)[:1]),
        ),
        _stage(
            "pack", ("lm.fgram", *exports, "package.json"), model_stages.pack_final, c.final, c.population.language,
            inputs=("final.ngram",),
        ),
    ]  # fmt: skip


def _measuring_stages(c: RunConfig, compute: Compute, timings: Timings) -> list[Stage]:
    networks = ("R_W.safetensors",) if c.evaluation.networks else ()
    printed = _eight(c, printed=True) if c.paper_way.run else ()
    models = ("baseline.ngram", *_eight(c), *printed, *_refitted(c), "final.ngram", "lm.fgram", *networks, *_pooled(c))
    stages = [
        _stage(
            "evaluation", ("evaluation.json",),
            partial(evaluation_stages.evaluation, judges=ByUsers(compute.cores)), c.evaluation, c.population.language,
            c.seed, inputs=(*_users(c), *models), measures=c.evaluation.split,
        ),
    ]  # fmt: skip
    if c.clipping.run:
        settings = c.clipping, replace(c.unigrams, counts=None), c.evaluation, c.seed
        stages.append(
            _stage(
                "clipping", ("clipping.json",), clipping_stage.clipping, *settings,
                inputs=(*_text(c), "A_W.ngram", "baseline.ngram"), measures=c.evaluation.split,
            )
        )  # fmt: skip
    told = _told(c)
    stages.append(_stage("report", report_files(c, told), partial(report, timings=timings), c, inputs=told))
    return stages


def _told(c: RunConfig) -> tuple[str, ...]:
    """What the stages tell the report."""
    told = ["population.json", "unigrams.json", "R_W.json", "baselines.json", "final.json", "package.json"]
    told += ["evaluation.json"]
    wanted = {
        "clipping.json": c.clipping.run, "R_P.json": c.pieces.use, "refit.json": c.refit.run,
    }  # fmt: skip
    return (*told, *(file for file, present in wanted.items() if present), *map(architecture_file, _architectures(c)))


def _users(c: RunConfig) -> tuple[str, ...]:
    """The users' text, if the server has it."""
    return () if c.population.is_on_devices else USERS


def _text(c: RunConfig) -> tuple[str, ...]:
    return *_users(c), *SERVER_TEXT


def _pooled(c: RunConfig) -> tuple[str, ...]:
    return ("pooled.ngram", "interpolated.ngram") if c.baselines.pooled else ()


def _eight(c: RunConfig, *, printed: bool = False) -> tuple[str, ...]:
    return model_files("W", printed=printed) + (model_files("P", printed=printed) if c.pieces.use else ())


def _refitted(c: RunConfig) -> tuple[str, ...]:
    return refit_stage.OUTPUTS[:2] if c.refit.run else ()


def _named(**paths: str | None) -> dict[str, str]:
    return {name: path for name, path in paths.items() if path is not None}


def _stage(
    name: str, outputs: tuple[str, ...], function: Callable[..., None], *settings: Any,
    inputs: tuple[str, ...] = (), sources: Mapping[str, str] | None = None, measures: str | None = None,
    after: tuple[str, ...] = (),
) -> Stage:  # fmt: skip
    """A stage whose function is given the work and its settings, which are also what its key depends on."""
    config = [asdict(value) if is_dataclass(value) and not isinstance(value, type) else value for value in settings]
    paths = {source: Path(path) for source, path in (sources or {}).items()}

    @wraps(function)  # a stage's key depends on the code of the function inside
    def run(work: Work) -> None:
        function(work, *settings)

    return Stage(name, outputs, run, inputs, paths, config, measures, after)

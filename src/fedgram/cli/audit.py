"""`fedgram audit`: attacks on our own models, and what they find."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fedgram.audit.options import CanaryOptions, EpsilonAuditOptions, InversionOptions, PoisoningOptions
from fedgram.cli.commands import Group
from fedgram.cli.console import show, steps
from fedgram.cli.parameters import json_option, output_path, seed_option, users_option
from fedgram.cli.run import given_files, population_options
from fedgram.cli.settings import settings_options
from fedgram.core.compute import Compute
from fedgram.core.progress import Begin
from fedgram.pipeline.config import RunConfig, read_run_config
from fedgram.text.messages import SPLITS

if TYPE_CHECKING:
    from fedgram.audit.canary_models import Trial
    from fedgram.text.population import Population

workspace_option = click.option(
    "-w", "--workspace", required=True, type=click.Path(path_type=Path), help="Folder for the audit's files."
)
report_option = click.option(
    "-w", "--workspace", type=click.Path(path_type=Path), help="Folder to keep the result in, for `fedgram report`."
)
config_argument = click.argument("config", metavar="[CONFIG.toml|PRESET]", required=False)
Private = TypeVar("Private", EpsilonAuditOptions, InversionOptions)
split_option = click.option(
    "--split", type=click.Choice((*SPLITS, "all")), default="train", show_default=True, help="Whose text."
)


@click.group(
    cls=Group,
    examples=[
        "fedgram audit ngrams model.arpa --users users.parquet",
        "fedgram audit ngrams lm.fgram --users users.parquet --public supplement.txt --json",
    ],
)
def group() -> None:
    """Attack models and mechanisms, to see what they show of single users."""


@group.command(
    "ngrams",
    examples=[
        "fedgram audit ngrams model.arpa --users users.parquet",
        "fedgram audit ngrams lm.fgram --users users.parquet --public supplement.txt --json",
    ],
)
@click.argument("model")
@users_option
@split_option
@click.option("--public", help="Text that everybody may see: n-grams that it has are no secret.")
@click.option("--cased/--uncased", default=False, help="Whether capitals must be the same.  [default: no]")
@click.option(
    "--min-devices",
    default=10,
    show_default=True,
    type=click.IntRange(2),
    help="Number of devices from which on an n-gram is no secret.",
)
@click.option("--list", "listed", callback=output_path,
              help="File for the n-grams that one device typed and the public text does not have.")  # fmt: skip
@report_option
@json_option
def ngrams_command(
    model: str, users: str, split: str, public: str | None, cased: bool, min_devices: int, listed: Path | None,
    workspace: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Count the n-grams of a model by the number of devices that typed them.

    MODEL is an n-gram model or a packed model. An n-gram that one device typed, and that the public text does not have,
    shows what one user wrote. Words that the model does not have are read as <unk>.
    """
    from fedgram.audit.ngram_devices import devices_by_ngram, spelled
    from fedgram.automata.model import NGramModel
    from fedgram.core.errors import InputError
    from fedgram.core.storage import atomic_write
    from fedgram.evaluate.models import in_memory
    from fedgram.text.corpus import corpus_of, normalized_sentences
    from fedgram.text.population import open_population

    with steps() as step:
        step.begin(f"Reading {model}")
        loaded = in_memory(model)
        if not isinstance(loaded, NGramModel):
            raise InputError(model, "has no n-grams: it is a network", remedy="name an n-gram model")
        people = open_population(users, on_rows=step.begin(f"Reading {users}"))
        chosen = people.users(None if split == "all" else split)
        text = None
        if public:
            text = corpus_of(map(" ".join, normalized_sentences(public, step.begin(f"Reading {public}"))))
        step.begin("Counting devices")
        found = devices_by_ngram(loaded, chosen, text, cased=cased)
    if listed is not None:
        with atomic_write(listed) as file:
            file.writelines(line.encode() + b"\n" for line in spelled(loaded, found.single))
    result = {
        "model": model, "users": len(chosen), "split": split, "cased": cased, "ngrams": len(found.length),
        "single_device": int(found.single.sum()), "below": int(found.below(min_devices).sum()),
        "min_devices": min_devices, "public": public is not None, "orders": found.table(),
    }  # fmt: skip
    _report("ngrams", result, workspace, as_json)


def _report(name: str, result: dict[str, Any], workspace: Path | None, as_json: bool) -> None:
    """Print what an audit found, and keep it if there is a workspace."""
    from fedgram.audit.tables import TABLES, keep_result

    if workspace is not None:
        keep_result(workspace, name, result)
    if as_json:
        show(result, as_json)
        return
    table = TABLES[name](result)
    print_table([table.header, *table.rows])
    for note in table.notes:
        click.echo(note)


def print_table(lines: list[tuple[str, ...]]) -> None:
    """Print rows in columns, the first row as the heading; all but the first column are right-aligned."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    for line in lines:
        cells = (cell.ljust(width) if i == 0 else cell.rjust(width)
                 for i, (cell, width) in enumerate(zip(line, widths, strict=True)))  # fmt: skip
        click.echo("  ".join(cells).rstrip())


@group.command(
    "epsilon",
    examples=[
        "fedgram audit epsilon --canaries 200",
        "fedgram audit epsilon --mechanism counts --epsilon 1 --canaries 500 --json",
    ],
)
@config_argument
@report_option
@settings_options(EpsilonAuditOptions, "options")
@seed_option
@json_option
def epsilon_command(
    config: str | None, workspace: Path | None, options: EpsilonAuditOptions, seed: int, as_json: bool
) -> None:
    """Bound ε from below by one run with canary devices, beside the accountant's ε.

    Every canary takes part or not by a fair coin, and is guessed from what was released. `bound` holds for every
    mechanism, `gaussian bound` for Gaussian noise; both hold with the confidence that is asked for, and are cautious.
    `estimate` is what a fit to the canaries' scores suggests, and in parentheses what it exceeds with 99.9 %. Without
    noise all must be large. A bound above the accountant's ε, or an estimate that exceeds it with 99.9 %, means that
    the mechanism is broken; the exit code is then 1. CONFIG is that of `fedgram run`: its ε
    and δ are audited.
    """
    from fedgram.audit.epsilon import audit_epsilon

    with steps() as step:
        found = audit_epsilon(_with_privacy(options, config), seed=seed, begin=step.begin)
    _report("epsilon", {"audits": found}, workspace, as_json)
    if any(row["passed"] is False for row in found):
        raise click.exceptions.Exit(1)


def _with_privacy(options: Private, config: str | None) -> Private:
    """The options, with ε and δ of a run's configuration, if there is one."""
    if config is None:
        return options
    privacy = read_run_config(config, {}).privacy
    return replace(options, epsilon=privacy.epsilon, delta=privacy.delta)


@group.command(
    "canaries",
    examples=[
        "fedgram audit canaries config.toml -w audit --no-network",
        "fedgram audit canaries config.toml -w audit --no-network --holders 0,1,10 --repeats 10 --copies 2 --json",
    ],
)
@click.argument("config", metavar="CONFIG.toml|PRESET")
@workspace_option
@population_options
@settings_options(CanaryOptions, "options")
@settings_options(Compute, "compute")
@json_option
def canaries_command(
    config: str, workspace: Path, options: CanaryOptions, compute: Compute, as_json: bool, **given: Any
) -> None:
    """Plant secrets in users' text, make all models of a run, and see which of them show the secrets.

    Exposure is in bits: about 1.4 for a secret that a model does not know, and at most what is printed. A secret counts
    as extracted if a beam search that knows its first words finds the rest. CONFIG is that of `fedgram run`, of which
    the population, the network of words, the distillation, the refit and the privacy are used. The refit is made with
    each protection; with dp the network has noise too. Files are kept in the workspace, and an interrupted audit
    resumes.
    """
    from fedgram.audit.canaries import audit_canaries

    settings = read_run_config(config, given_files(given))
    with steps() as step:
        people, trial = _trial(settings, workspace, compute, step.begin)
        result = audit_canaries(
            people, trial, options, workspace / "canaries", digest=settings.digest, compute=compute, begin=step.begin
        )  # fmt: skip
    _report("canaries", result, workspace, as_json)


def _trial(settings: RunConfig, workspace: Path, compute: Compute, begin: Begin) -> "tuple[Population, Trial]":
    """The users of a run and what models are made with; the run's stages on text are run, or were before."""
    from fedgram.audit.canary_models import Trial
    from fedgram.formats.artefact import read_ngram
    from fedgram.pipeline.run import run_pipeline
    from fedgram.text.corpus import read_corpus
    from fedgram.text.population import open_population
    from fedgram.text.unigrams import read_unigram_counts

    run = workspace / "run"
    run_pipeline(settings, run, compute=compute, until="external", begin=begin)
    privacy = settings.privacy
    networks = privacy.networks_share / (1.0 - privacy.unigrams_share)
    trial = Trial(
        read_corpus([run / "supplement.txt"]), read_ngram(run / "A_W.ngram"), read_unigram_counts(run / "U.unigrams"),
        privacy, settings.words.preset, networks, settings.words.pretraining, settings.words.training,
        settings.distillation, settings.refit, settings.budget, settings.distillation.room, settings.seed,
    )  # fmt: skip
    return open_population(run / "users.population"), trial


@group.command(
    "poisoning",
    examples=[
        "fedgram audit poisoning config.toml -w audit --no-network",
        "fedgram audit poisoning config.toml -w audit --no-network --attacks backdoor --shares 0.01 --json",
    ],
)
@click.argument("config", metavar="CONFIG.toml|PRESET")
@workspace_option
@population_options
@settings_options(PoisoningOptions, "options")
@settings_options(Compute, "compute")
@json_option
def poisoning_command(
    config: str, workspace: Path, options: PoisoningOptions, compute: Compute, as_json: bool, **given: Any
) -> None:
    """Let some devices lie, and see what it does to the network and to the n-gram model.

    In a backdoor, they want a word of their choice to be the first suggestion after phrases that many users type. In a
    sabotage, they want the model to be worse. Both stay within the limits that the server checks, and use them fully.
    CONFIG is that of `fedgram run`. `first` is the share of the backdoors that succeed, `shown` the share whose word is
    among three suggestions. Changes of top-1 are relative to honest devices and the same defence. Files are kept in the
    workspace, and an interrupted audit resumes.
    """
    from fedgram.audit.poisoning import audit_poisoning

    settings = read_run_config(config, given_files(given))
    with steps() as step:
        people, trial = _trial(settings, workspace, compute, step.begin)
        result = audit_poisoning(
            people, trial, options, workspace / "poisoning", digest=settings.digest, compute=compute, begin=step.begin
        )  # fmt: skip
    _report("poisoning", result, workspace, as_json)


@group.command(
    "membership",
    examples=[
        "fedgram audit membership model.arpa --users users.parquet",
        "fedgram audit membership lm.fgram --users users.parquet --reference b.arpa --json",
    ],
)
@click.argument("model")
@users_option
@click.option("--reference", help="Model of the same kind that was trained without these users.")
@click.option("--members", type=click.Choice(SPLITS), default="train", show_default=True,
              help="Users whose text was used.")  # fmt: skip
@click.option("--others", type=click.Choice(SPLITS), default="test", show_default=True,
              help="Users whose text was not used.")  # fmt: skip
@report_option
@json_option
def membership_command(
    model: str, users: str, reference: str | None, members: str, others: str, workspace: Path | None, as_json: bool
) -> None:
    """Tell users whose text was used from others, by the likelihood of their text.

    MODEL is an n-gram model, a packed model or a network of words. The AUC is the chance that a member's text is
    relatively more likely than another user's: 0.5 if the model shows nothing. With a reference, likelihoods are
    relative to it, which finds members more surely. The interval takes users as the unit.
    """
    from fedgram.audit.membership import audit_membership
    from fedgram.core.errors import FedgramError
    from fedgram.text.population import open_population

    if members == others:
        raise FedgramError("--members and --others are the same users; name two splits")
    with steps() as step:
        people = open_population(users, on_rows=step.begin(f"Reading {users}"))
        found = audit_membership(
            model, people.users(members), people.users(others), reference=reference, begin=step.begin
        )  # fmt: skip
    _report("membership", {"model": model, "reference": reference, **found.facts()}, workspace, as_json)


@group.command(
    "inversion",
    examples=[
        "fedgram audit inversion --typists 40 --cohort 20 --targets 5",
        "fedgram audit inversion --users users.parquet --cohort 20 --targets 5 --json",
    ],
)
@config_argument
@report_option
@click.option("--users", help="Population: .parquet or .population; by default, generated typists.")
@settings_options(InversionOptions, "options")
@seed_option
@json_option
def inversion_command(
    config: str | None, workspace: Path | None, users: str | None, options: InversionOptions, seed: int, as_json: bool
) -> None:
    """Recover words and pairs of one device from what it sends, from the sum of a cohort, and from a sum with noise.

    `recovered` is the share of the device's words (or pairs) that are guessed, `right` the share of the guesses that
    are the device's. A masked sum shows what the sum of the cohort shows. `frequency alone` guesses the most frequent
    words without any update: what is not better than this shows nothing of the device. CONFIG is that of `fedgram run`:
    its ε and δ are those of the noise.
    """
    from fedgram.audit.epsilon import network_of, typing_users
    from fedgram.audit.inversion import audit_inversion
    from fedgram.text.population import open_population

    options = _with_privacy(options, config)
    with steps() as step:
        people = open_population(users) if users else typing_users(options.typists, seed)
        found = audit_inversion(
            people.train, network_of(people, seed), options.privacy, targets=options.targets, cohort=options.cohort,
            seed=seed, begin=step.begin,
        )  # fmt: skip
    attacks = [asdict(row) for row in found]
    result = {"epsilon": options.epsilon, "delta": options.delta, "attacks": attacks}
    _report("inversion", result, workspace, as_json)

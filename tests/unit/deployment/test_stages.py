"""Which stages of a run a federation carries out, and that none of them asks simulated devices in its place."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from fedgram.core.errors import FedgramError
from fedgram.core.toml_config import digest, from_table
from fedgram.deployment.federation_devices import FederationDevices, Servers, masking_of, round_plan, timeouts_of
from fedgram.deployment.folder import FederationConfig, RoundsConfig, make_folder, open_folder
from fedgram.deployment.stages import on_federation, stages_that_ask
from fedgram.pipeline.config import PopulationSection, RunConfig
from fedgram.pipeline.stages import run_stages

ASKING = {"unigrams", "train_words", "train_pieces", "refit"}


def test_all_stages_that_ask_devices_are_the_federations(tmp_path: Path) -> None:
    home, config = make_folder(tmp_path / "fed", FederationConfig(tls=False)), RunConfig()
    change = on_federation(Servers(home), config)
    assert stages_that_ask(change, config) == ASKING
    before = {stage.name: stage for stage in run_stages(config)}
    after = {stage.name: stage for stage in change(list(before.values()))}
    assert list(after) == list(before)
    assert {name for name in after if after[name].function != before[name].function} == ASKING
    assert {name for name in after if digest(after[name].config) != digest(before[name].config)} == ASKING
    for name in ASKING:
        assert (after[name].inputs, after[name].outputs) == (before[name].inputs, before[name].outputs)


def test_without_users_devices_measure_too(tmp_path: Path) -> None:
    text = PopulationSection(supplement="s.txt", whitelist="w.txt")
    config = replace(RunConfig(), population=text).without_users()
    home = make_folder(tmp_path / "fed", FederationConfig(tls=False, dev_share=0.1, test_share=0.1))
    before = {stage.name: stage for stage in run_stages(config)}
    after = {stage.name: stage for stage in on_federation(Servers(home), config)(list(before.values()))}
    changed = {name for name in after if after[name].function != before[name].function}
    assert changed == ASKING | {"baselines", "final", "evaluation", "clipping"}
    assert stages_that_ask(on_federation(Servers(home), config), config) == changed
    plain = make_folder(tmp_path / "plain", FederationConfig(tls=False))
    with pytest.raises(FedgramError, match="has no devices to measure models on"):
        on_federation(Servers(plain), config)


def test_what_the_configuration_names_is_not_asked_of_devices(tmp_path: Path) -> None:
    home, plain = make_folder(tmp_path / "fed", FederationConfig(tls=False)), RunConfig()
    config = replace(
        plain, unigrams=replace(plain.unigrams, counts="U.unigrams"), words=replace(plain.words, network="R_W"),
        pieces=replace(plain.pieces, use=False), refit=replace(plain.refit, run=False),
    )  # fmt: skip
    before = run_stages(config)
    assert on_federation(Servers(home), config)(before) == before


@pytest.mark.parametrize("section", ["unigrams", "words.training", "pieces.training", "refit"])
def test_rounds_too_small_to_be_masked_are_refused_at_once(tmp_path: Path, section: str) -> None:
    home = make_folder(tmp_path / "fed", FederationConfig(tls=False, masked_with=3))
    config = from_table(tomllib.loads(f"[{section}]\ndevices_per_round = 2"), RunConfig)
    line = rf"{section}\.devices_per_round = 2 is less than the federation's masked_with = 3"
    with pytest.raises(FedgramError, match=line):
        on_federation(Servers(home), config)(run_stages(config))
    unmasked = make_folder(tmp_path / "plain", FederationConfig(tls=False, masked_with=0))
    on_federation(Servers(unmasked), config)(run_stages(config))


@pytest.mark.parametrize("tls", [False, True])
def test_what_one_federation_sent_does_not_count_for_another(tmp_path: Path, tls: bool) -> None:
    config = RunConfig()
    for name in ("one", "other"):
        make_folder(tmp_path / name, FederationConfig(tls=tls))
    names = [stage.name for stage in run_stages(config)]

    def configs(*folders: str) -> list[str]:
        home, *others = (open_folder(tmp_path / name) for name in folders)
        return [digest(s.config) for s in on_federation(Servers(home, tuple(others)), config)(run_stages(config))]

    for others in (("other",), ("one", "other")):
        differ = [a != b for a, b in zip(configs("one"), configs(*others), strict=True)]
        assert {n for n, d in zip(names, differ, strict=True) if d} == ASKING
    assert configs("one") == configs("one")


def test_a_device_is_asked_as_often_as_both_the_run_and_the_federation_allow(tmp_path: Path) -> None:
    once = FederationDevices(Servers(make_folder(tmp_path / "once", FederationConfig(tls=False))), tmp_path)
    thrice = make_folder(tmp_path / "thrice", FederationConfig(tls=False, participations=3))
    often = FederationDevices(Servers(thrice), tmp_path)
    assert [once.participations(limit) for limit in (None, 1, 2)] == [1, 1, 1]
    assert [often.participations(limit) for limit in (None, 1, 2, 9)] == [3, 1, 2, 3]


def test_rounds_are_run_as_the_federation_says(tmp_path: Path) -> None:
    rounds = RoundsConfig(
        deadline=9.0, minimum=0.4, attempts=2, wait_seconds=8.0, wait_for=7, idle_seconds=6.0, batch=5
    )
    home = make_folder(tmp_path / "fed", FederationConfig(tls=False, masked_with=4, rounds=rounds))
    plan, timeouts, masking = round_plan(home, 20, 1.2), timeouts_of(home), masking_of(home)
    assert (plan.devices, plan.over_selection, plan.minimum, plan.attempts) == (20, 1.2, 8, 2)
    assert round_plan(home, 5, 1.0).minimum == 4  # the fewest that may be summed
    assert (timeouts.deadline, timeouts.wait_seconds, timeouts.idle_seconds) == (9.0, 8.0, 6.0)
    assert (timeouts.wait_for, timeouts.batch) == (7, 5)
    assert masking is not None
    assert masking.min_devices == 4
    assert masking_of(make_folder(tmp_path / "plain", FederationConfig(tls=False, masked_with=0))) is None

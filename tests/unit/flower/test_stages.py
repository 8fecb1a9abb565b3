"""Which stages of a run a federation carries out, and that none of them asks simulated devices in its place."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedgram.core.errors import FedgramError
from fedgram.flower.folder import FederationConfig, make_folder, open_folder
from fedgram.flower.stages import for_federation, on_federation
from fedgram.pipeline.config import RunConfig
from fedgram.pipeline.stages import run_stages
from fedgram.pipeline.strict_toml import digest


def test_a_federation_has_no_refit(tmp_path: Path) -> None:
    home = make_folder(tmp_path / "fed", FederationConfig(tls=False))
    plain = RunConfig()
    assert "refit" in [stage.name for stage in run_stages(plain)]
    with pytest.raises(FedgramError, match=r"set refit\.run = false"):
        on_federation(home, plain)(run_stages(plain))
    config = for_federation(plain)
    before = {stage.name: stage for stage in run_stages(config)}
    after = {stage.name: stage for stage in on_federation(home, config)(list(before.values()))}
    assert "refit" not in after
    assert {name for name in after if after[name] != before[name]} == {"unigrams", "train_words", "train_pieces"}
    assert not any(name.startswith("refit") for stage in after.values() for name in stage.inputs)


@pytest.mark.parametrize(
    ("masked_with", "devices", "clients", "line"),
    [
        (3, 2, 5, r"unigrams\.devices_per_round = 2 is less than the federation's masked_with = 3"),
        (3, 5, 2, r"training\.clients_per_round = 2 is less than the federation's masked_with = 3"),
    ],
)
def test_rounds_too_small_to_be_masked_are_refused_at_once(
    tmp_path: Path, masked_with: int, devices: int, clients: int, line: str
) -> None:
    home = make_folder(tmp_path / "fed", FederationConfig(tls=False, masked_with=masked_with))
    plain = for_federation(RunConfig())
    config = replace(
        plain, unigrams=replace(plain.unigrams, devices_per_round=devices),
        training=replace(plain.training, clients_per_round=clients),
    )  # fmt: skip
    with pytest.raises(FedgramError, match=line):
        on_federation(home, config)(run_stages(config))


@pytest.mark.parametrize("tls", [False, True])
def test_what_one_federation_sent_does_not_count_for_another(tmp_path: Path, tls: bool) -> None:
    config = for_federation(RunConfig())
    for name in ("one", "other"):
        make_folder(tmp_path / name, FederationConfig(tls=tls))

    def configs(name: str) -> list[str]:
        return [digest(s.config) for s in on_federation(open_folder(tmp_path / name), config)(run_stages(config))]

    differ = [a != b for a, b in zip(configs("one"), configs("other"), strict=True)]
    names = [stage.name for stage in run_stages(config)]
    assert {n for n, d in zip(names, differ, strict=True) if d} == {"unigrams", "train_words", "train_pieces"}
    assert configs("one") == configs("one")

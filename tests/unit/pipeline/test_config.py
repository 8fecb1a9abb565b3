"""Configurations: what is read, what is refused and how, and what counts as a change."""

import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgram.core.compute import Compute
from fedgram.core.errors import FedgramError, InputError
from fedgram.core.toml_config import digest, from_table, known_keys, to_toml
from fedgram.neural.model import PRESETS
from fedgram.pipeline.config import PiecesPreset, RunConfig, UnigramsSection, WordsPreset, preset_path, read_run_config
from fedgram.pipeline.estimates import estimate_seconds
from fedgram.privacy.accounting import compose
from fedgram.training.plan import TrainingPlan


def refused(text: str) -> str:
    with pytest.raises(InputError) as error:
        from_table(tomllib.loads(text), RunConfig, "run.toml")
    message = str(error.value)
    assert message.startswith("run.toml: ")
    assert "\n" not in message
    return message[len("run.toml: ") :]


def test_defaults_are_the_papers() -> None:
    config = from_table({}, RunConfig)
    assert config == RunConfig()
    assert (config.unigrams.devices_per_round, config.budget.max_ngrams, config.external.higher_order_words) == (
        500,
        1_500_000,
        64_000,
    )


def test_a_device_counts_once_and_moves_the_model_by_so_much_unless_told() -> None:
    config = RunConfig()
    assert config.unigrams.participations == 1
    assert config.words.training.update_norm == TrainingPlan().update_norm == 1.0


def test_the_shares_of_all_operations_compose_to_the_budget() -> None:
    pytest.importorskip("dp_accounting")
    privacy = from_table({"privacy": {"protection": "dp", "epsilon": 2.0, "delta": 1e-7}}, RunConfig).privacy
    parts = [privacy.of_unigrams, privacy.of_network(2), privacy.of_network(2), privacy.of_ngrams]
    assert compose([part.event for part in parts], 1e-7).epsilon == pytest.approx(2.0, rel=1e-6)


def test_networks_cannot_be_trained_with_no_part_of_the_budget() -> None:
    given = '[privacy]\nprotection = "dp"\nnetworks_share = 0\n'
    assert "networks_share must be greater than 0" in refused(given)
    elsewhere = '[words]\nnetwork = "R_W.safetensors"\n[pieces]\nuse = false\n'
    assert from_table(tomllib.loads(given + elsewhere), RunConfig).trained == 0


def test_values_and_their_types() -> None:
    config = from_table(
        tomllib.loads("seed = 7\n[unigrams]\nclip = 5\ndropout = 0.25\n[external]\nmin_count = [1, 1, 2]\n"), RunConfig
    )
    assert (config.seed, config.unigrams.clip, config.unigrams.dropout) == (7, 5.0, 0.25)
    assert type(config.unigrams.clip) is float
    assert config.external.min_count == (1, 1, 2)
    assert from_table({"unigrams": {"clip": math.inf}}, RunConfig).unigrams.clip == math.inf
    assert from_table({"refit": {"clip": math.inf}}, RunConfig).refit.clip == math.inf
    assert from_table(tomllib.loads("[refit]\nnorm = inf"), RunConfig).refit.norm == math.inf
    assert from_table(tomllib.loads("[refit]\nnorm = 40"), RunConfig).refit.norm == 40.0
    assert RunConfig().refit.norm is None
    unlimited = from_table({"words": {"training": {"update_norm": math.inf}}}, RunConfig)
    assert unlimited.words.training.update_norm == math.inf
    assert from_table({"unigrams": {"participations": 0}}, RunConfig).unigrams.participations == 0
    assert from_table({"clipping": {"thresholds": [1, math.inf]}}, RunConfig).clipping.thresholds == (1.0, math.inf)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[unigrams]\nclib = 5", "unknown key unigrams.clib; did you mean unigrams.clip?"),
        ("[unigrms]\nclip = 5", "unknown key unigrms; did you mean unigrams?"),
        ("clip = 5", "unknown key clip; did you mean unigrams.clip?"),
        ("[pieces]\nrounds = 5", "unknown key pieces.rounds; did you mean unigrams.rounds?"),
        ("[pieces]\nzzzzzzz = 5", "unknown key pieces.zzzzzzz; use one of pieces.size, pieces.use"),
        ("[unigrams]\nclip = 'much'", "unigrams.clip must be a number above 0, not 'much'"),
        ("[unigrams]\nclip = 0", "unigrams.clip must be a number above 0, not 0"),
        ("[unigrams]\nclip = nan", "unigrams.clip must be a number above 0, not nan"),
        ("[unigrams]\nover_selection = inf", "unigrams.over_selection must be a number from 1 to 1000, not inf"),
        ("[words.training]\nclient_rate = inf", "words.training.client_rate must be a number above 0, not inf"),
        ("[words.training]\nclient_rate = nan", "words.training.client_rate must be a number above 0, not nan"),
        (
            f"[words.training]\nclient_rate = 1{'0' * 400}",
            "words.training.client_rate must be a number above 0, not 1000",
        ),
        ("[words.training]\nupdate_norm = 0", "words.training.update_norm must be a number above 0, not 0"),
        ("[words.training]\nupdate_norm = nan", "words.training.update_norm must be a number above 0, not nan"),
        ("[unigrams]\nparticipations = -1", "unigrams.participations must be a whole number at least 0, not -1"),
        ("[unigrams]\nparticipations = inf", "unigrams.participations must be a whole number at least 0, not inf"),
        ("[refit]\nsketch_bits = 29", "refit.sketch_bits must be a whole number from 4 to 28, not 29"),
        (
            "[words.pretraining]\nlearning_rate = inf",
            "words.pretraining.learning_rate must be a number above 0, not inf",
        ),
        ("[refit]\nprior = inf", "refit.prior must be a number above 0, not inf"),
        ("[refit]\nclip = -inf", "refit.clip must be a number at least 1, not -inf"),
        ("[refit]\nnorm = 0", "refit.norm must be a number above 0, not 0"),
        ("[refit]\nnorm = nan", "refit.norm must be a number above 0, not nan"),
        ("[refit]\nnorm = -inf", "refit.norm must be a number above 0, not -inf"),
        ("[refit]\nnorm = inf\n[privacy]\nprotection = 'dp'", "refit.norm must be finite with protection dp"),
        ("[clipping]\nthresholds = [1, nan]", "clipping.thresholds must be an array, each a number above 0, not [1, n"),
        ("[words]\npreset = 'W_300K'", "words.preset must be one of 'W_30K', 'W_8K', 'W_demo', not 'W_300K'"),
        ("[pieces]\npreset = 'W_30K'", "pieces.preset must be one of 'P_4K-S', 'P_4K-L', "),
        ("[unigrams]\nrounds = 2.0", "unigrams.rounds must be a whole number at least 1, not 2.0"),
        ("[unigrams]\nrounds = true", "unigrams.rounds must be a whole number at least 1, not true"),
        ("[external]\norder = 8", "external.order must be a whole number from 1 to 7, not 8"),
        (
            "[external]\nmin_count = [1, 0]",
            "external.min_count must be an array, each a whole number at least 1, not [1, 0]",
        ),
        ("[external]\nmin_count = 2", "external.min_count must be an array, each a whole number at least 1, not 2"),
        ("[external]\nmin_count = []", "external.min_count must be an array, each a whole number at least 1, not []"),
        (
            "[external]\norder = 1\nmin_count = [1, 2]",
            "external: min_count names 2 orders, but the model has 1",
        ),
        ("[evaluation]\nsplit = 'tset'", "evaluation.split must be one of 'train', 'dev', 'test', not 'tset'"),
        ("[evaluation]\nexperiment = 1", "evaluation.experiment must be true or false, not 1"),
        ("[evaluation]\nsplit = ['dev']", "evaluation.split must be one of 'train', 'dev', 'test', not ['dev']"),
        ("unigrams = 3", "unigrams must be a section, not 3"),
        ("[seed]\na = 1", "seed must be a whole number at least 0, not a section"),
        ("[population]\nusers = 'u.parquet'", "population: give users, supplement and whitelist, or none of them to"),
        ("[population]\nusers = 5", "population.users must be text, not 5"),
        (
            "[privacy]\nepsilon = 3.42\ndelta = 1e-6",
            "privacy.epsilon and privacy.delta need privacy.protection = 'dp'; without it no noise is added",
        ),
        ("[privacy]\nnetworks_share = 0.2", "privacy.networks_share needs privacy.protection = 'dp'"),
        (
            "[words.training]\nnoise_multiplier = 2",
            "words.training.noise_multiplier needs words.training.noise = 'poisson' or 'blt'; without it no noise",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(text: str, message: str) -> None:
    assert refused(text).startswith(message)


def test_settings_that_have_no_effect_are_allowed_beside_the_reason() -> None:
    """Such as in the configuration that a run writes, or to switch noise off for a while."""
    for text in (
        '[privacy]\nprotection = "none"\nepsilon = 2',
        '[privacy]\nprotection = "dp"\nepsilon = 2\nmin_devices = 20',
        "[privacy]\nmin_devices = 20",
        '[privacy]\nprotection = "dp"\n[words.training]\nmin_separation = 5',  # a run with dp adds BLT noise
    ):
        assert from_table(tomllib.loads(text), RunConfig).privacy


def test_the_presets_are_the_networks() -> None:
    words = [name for name, preset in PRESETS.items() if not preset.pieces]
    assert (*words,) == get_args(WordsPreset)
    assert tuple(name for name in PRESETS if name not in words) == get_args(PiecesPreset)


def test_files_are_found_beside_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[population]\nusers = 'u.parquet'\nsupplement = 's.txt'\nwhitelist = 'w.txt'\n")
    with pytest.raises(InputError, match=r"population.users names a file that is not there: .*u.parquet"):
        read_run_config(path)
    for name in ("u.parquet", "s.txt", "w.txt"):
        (tmp_path / name).write_text("text\n")
    assert read_run_config(path).population.users == str(tmp_path / "u.parquet")


@pytest.mark.parametrize("key", ["users", "supplement", "whitelist"])
def test_a_folder_and_an_empty_file_are_refused_before_a_run(key: str, tmp_path: Path) -> None:
    paths = {("population", name): str(tmp_path / name) for name in ("users", "supplement", "whitelist")}
    for path in paths.values():
        Path(path).write_text("text\n")
    assert read_run_config("en_us", paths).population.users == str(tmp_path / "users")
    (tmp_path / "chats").mkdir()
    with pytest.raises(InputError) as error:
        read_run_config("en_us", {**paths, ("population", key): str(tmp_path / "chats")})
    assert f"population.{key} names a folder, not a file: {tmp_path}/chats; " in str(error.value)
    remedy = f"fedgram data import {tmp_path}/chats -o users.parquet" if key == "users" else "; name a file"
    assert remedy in str(error.value)
    (tmp_path / key).write_text("")
    with pytest.raises(InputError, match=f"population.{key} names an empty file: {tmp_path}/{key}"):
        read_run_config("en_us", paths)


def test_without_users_the_server_has_a_supplement_and_a_whitelist(tmp_path: Path) -> None:
    for name in ("s.txt", "w.txt"):
        (tmp_path / name).write_text("text\n")
    path = tmp_path / "run.toml"
    path.write_text("[population]\nsupplement = 's.txt'\nwhitelist = 'w.txt'\n")
    config = read_run_config(path)
    assert config.population.is_on_devices
    assert (config.baselines.pooled, config.clipping.run, config.evaluation.experiment) == (False, True, False)
    assert not RunConfig().population.is_on_devices
    with pytest.raises(FedgramError, match=r"architectures\.run needs users at the server"):
        replace(config, architectures=replace(config.architectures, run=True)).without_users()
    for line in ("supplement = 's.txt'", "whitelist = 'w.txt'"):
        path.write_text(f"[population]\n{line}\n")
        with pytest.raises(InputError, match="give users, supplement and whitelist, or none of them"):
            read_run_config(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"seed = \n", "is not TOML.*line 1"),
        (b"\xff = 1", "is not UTF-8"),
        (b"#" * (1 << 19), "more than 256 KiB"),
        (b"seed = " + b"1" * 5_000, "a number of too many digits"),
        (b"\n" + b"a." * 50_000 + b"a = 1", "run.toml:2: has more than 100 dots on a line"),
        (b"x = " + b"[" * 3_000, "is not TOML"),
        (b"[words.training]\nclient_rate = " + b"1" * 4_000, "client_rate"),
        (b"k" * 90_000 + b" = 1", "unknown key k{80};"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_run_config(path)


def test_the_digest_is_of_values_not_of_their_writing() -> None:
    written = from_table(tomllib.loads("# a comment\n[unigrams]\nclip = 1_000\nrounds = 300"), RunConfig)
    assert written.digest == RunConfig().digest
    other = replace(RunConfig(), unigrams=UnigramsSection(clip=1.0))
    assert other.digest != RunConfig().digest
    assert digest(other.pieces) == digest(RunConfig().pieces)
    assert digest(other.unigrams) != digest(RunConfig().unigrams)


@given(
    seed=st.integers(0, 2**40),
    clip=st.floats(min_value=1e-12, allow_nan=False),
    language=st.sampled_from(["en_us", "pt_br"]),
    path=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(sorted),
)
def test_a_written_configuration_reads_back(
    seed: int, clip: float, language: str, path: str, counts: list[int]
) -> None:
    table = {
        "seed": seed,
        "unigrams": {"clip": clip},
        "population": {"language": language, "users": path, "supplement": path, "whitelist": path},
        "external": {"min_count": counts},
        "evaluation": {"experiment": seed % 2 == 0},
    }
    config = from_table(table, RunConfig)
    assert from_table(tomllib.loads(to_toml(config)), RunConfig) == config


def test_all_keys_are_known() -> None:
    keys = known_keys(RunConfig())
    assert {"seed", "unigrams", "unigrams.clip", "external.min_count", "evaluation.split"} <= set(keys)
    assert to_toml(RunConfig()).startswith("seed = 0\ntitle = ")


def test_the_page_on_runs_lists_all_defaults() -> None:
    page = (Path(__file__).parents[3] / "docs" / "pipeline.md").read_text("utf-8")
    assert f"```toml\n{to_toml(RunConfig())}```" in page


def test_presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_run_config("demo").population.users is None
    monkeypatch.chdir(tmp_path)
    refusal = r"en_us: population.users names .* users.parquet; give it with --users; .* phone build"
    with pytest.raises(InputError, match=refusal):
        read_run_config("en_us")
    for name in ("u.parquet", "supplement.txt", "whitelist.txt"):
        Path(name).write_text("text\n")
    config = read_run_config("pt_br", {("population", "users"): "u.parquet"})
    assert (config.population.users, config.population.language) == ("u.parquet", "pt_br")
    with pytest.raises(InputError, match=r"words.network names a file that is not there"):
        read_run_config("demo", {("words", "network"): "none.safetensors"})
    with pytest.raises(InputError, match="give users, supplement and whitelist, or none"):
        read_run_config("demo", {("population", "users"): "u.parquet"})


def test_a_preset_is_not_hidden_by_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()  # as `fedgram run demo -w demo` leaves it
    assert read_run_config("demo") == read_run_config(preset_path("demo"))
    (tmp_path / "demo").rmdir()
    (tmp_path / "demo").write_text("seed = 99\n")
    assert read_run_config("demo").seed == 99


def test_the_small_preset_takes_the_place_of_sizes_and_leaves_the_rest() -> None:
    given = {("population", key): __file__ for key in ("users", "supplement", "whitelist")}
    whole, small = read_run_config("pt_br", given), read_run_config("pt_br", given, "small")
    assert small.population == whole.population
    assert (small.words.preset, small.pieces.use, small.architectures.run) == ("W_8K", False, False)
    assert (small.budget, small.unigrams, small.title) == (whole.budget, whole.unigrams, whole.title)
    assert small.words.training.rounds < whole.words.training.rounds
    with pytest.raises(FedgramError, match="there is no preset 'tiny'; presets are demo, en_us, pt_br, small"):
        read_run_config("pt_br", given, "tiny")


@pytest.mark.parametrize("language", ["en_us", "pt_br"])
def test_the_presets_of_languages_limit_updates_and_train_each_network_its_own_way(language: str) -> None:
    config = read_run_config(language, {("population", key): __file__ for key in ("users", "supplement", "whitelist")})
    for own in (config.words, config.pieces):
        assert own.training.update_norm < math.inf
        assert own.training.server_rule == "adam"
        assert own.pretraining.unit_dropout == own.training.unit_dropout > 0
    assert config.words.training != config.pieces.training


def test_estimates_grow_with_the_work_and_shrink_with_the_cores() -> None:
    demo = read_run_config("demo")
    one, two = (estimate_seconds(demo, Compute("cpu", cores)) for cores in (1, 2))
    assert one["train_words"] > two["train_words"] > 0
    assert one["pretrain_words"] == two["pretrain_words"]
    training = replace(demo.words.training, rounds=10 * demo.words.training.rounds)
    longer = estimate_seconds(replace(demo, words=replace(demo.words, training=training)), Compute("cpu", 1))
    assert longer["train_words"] == pytest.approx(10 * one["train_words"], rel=0.1)
    assert not any(stage.startswith("architecture_") for stage in one)
    curves = replace(demo, architectures=replace(demo.architectures, run=True))
    assert estimate_seconds(curves, Compute("cpu", 1))["architecture_P_30K"] > one["train_pieces"]

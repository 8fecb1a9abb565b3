"""A federation whose server has no user's text, with TLS, keys, masks and arms: a run, publishing, evaluation."""

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_federation import command, set_up

from fedgram.automata.model import NGramModel
from fedgram.deployment.flower.processes import wait_until_served
from fedgram.deployment.folder import Folder
from fedgram.fgram.reader import open_model
from fedgram.files import pack, save
from fedgram.formats.artefact import read_ngram
from fedgram.neural.network import Network
from fedgram.text.messages import write_messages
from fedgram.text.synthetic.typists import SyntheticPopulation

SOURCE = SyntheticPopulation("en_us", seed=4)
ARMS = ("train", "train", "dev", "dev", "test", "test")
TESTERS = ARMS.count("test")
PLANTED = [f"{first}{second}xqvarlo" for first in "bcd" for second in "ae"]  # a word for each device, and no one else
FIGURES = ("top1", "top3", "oov_rate", "perplexity", "sll", "sll_e", "keystroke_savings")
CONFIG = """
seed = 11
[population]
supplement = "supplement.txt"
whitelist = "whitelist.txt"
[unigrams]
clip = 1000
devices_per_round = 2
rounds = 1
over_selection = 1.0
[words]
preset = "W_demo"
[pieces]
use = false
[words.pretraining]
epochs = 0
[words.training]
rounds = 2
devices_per_round = 2
client_rate = 0.5
over_selection = 1.0
max_sentences = 30
evaluate_every = 2
dev_users = 2
[budget]
max_ngrams = 2000
[distillation]
samples = 300
infer_samples = 300
order = 2
[paper_way]
run = false
[refit]
devices_per_round = 2
over_selection = 1.0
pairs = false
grow = 0
order = 2
[clipping]
thresholds = [1.0, inf]
devices = 2
"""


def write_text(folder: Path) -> None:
    """Users with their arms as splits; each types a word that no one else has. The server's text and configuration."""
    rows = list(SOURCE.rows(len(ARMS)))
    place = {user: n for n, user in enumerate(sorted({user for user, _, _ in rows}))}
    rows += [(user, f"is {PLANTED[n]} here, {PLANTED[n].capitalize()}", None) for user, n in place.items()]
    write_messages(folder / "users.parquet", ((user, text, ARMS[place[user]]) for user, text, _ in rows))
    server = folder / "own"
    server.mkdir()
    lines = [" ".join(sentence) for sentence in SOURCE.clean_sentences(300)]
    (server / "supplement.txt").write_text("\n".join(lines) + "\n")
    words = sorted({word.lower() for line in lines for word in line.split() if word[0].isalpha()})
    (server / "whitelist.txt").write_text("\n".join(words) + "\n")
    (server / "run.toml").write_text(CONFIG)


def write_models(folder: Path) -> list[Path]:
    """An n-gram model, a packed one and a network."""
    lines = [" ".join(sentence) for sentence in SOURCE.clean_sentences(400)]
    save(NGramModel.train(lines, order=2), folder / "old.arpa")
    pack(NGramModel.train(lines, order=3), folder / "new.fgram")
    frequency = {word: 1.0 for line in lines for word in line.lower().split()}
    save(Network.create("W_demo", dict(list(frequency.items())[:300]), seed=2), folder / "R.safetensors")
    return [folder / name for name in ("old.arpa", "new.fgram", "R.safetensors")]


def printed(found: dict[str, Any]) -> list[list[str]]:
    """The figures as tables show them, in the order of the models."""
    changes = [model["change"] for model in found["models"] if "change" in model]
    return [[f"{part[name]['value']:.2f}" for name in FIGURES] for part in [*found["models"], *changes]]


def words_found(folder: Path, *, besides: str = "") -> set[str]:
    """Which planted words stand in any file of a folder, in capitals or not."""
    files = [path for path in folder.rglob("*") if path.is_file() and besides not in path.relative_to(folder).parts]
    contents = [path.read_bytes().lower() for path in files]
    return {word for word in PLANTED if any(word.encode() in content for content in contents)}


@pytest.mark.early
@pytest.mark.timeout(600)
def test_a_federation_without_users_at_the_server(
    tmp_path: Path, fedgram: Callable[..., Any], refused: Callable[..., str]
) -> None:
    """From a supplement and a whitelist to a published model and its evaluation; nothing of devices' own words stays
    at the server, and the figures are those of one process that has all text.
    """
    write_text(tmp_path)
    users, stores, config = tmp_path / "users.parquet", tmp_path / "stores", tmp_path / "own" / "run.toml"
    for arm in set(ARMS):
        fedgram("federation", "devices", users, "--split", arm, "-o", stores)
    old, new, network = write_models(tmp_path)
    assert "population.users is missing" in refused("run", config, "-w", tmp_path / "none")
    plain = set_up(tmp_path / "plain", fedgram=fedgram)
    line = refused("federation", "run", plain.path, config, "-w", tmp_path / "none")
    assert "has no devices to measure models on" in line
    assert "set dev_share and test_share" in line
    home = set_up(tmp_path / "fed", "--masked-with", 2, "--dev-share", 0.3, "--test-share", 0.4, fedgram=fedgram)
    settings = home.path / "federation.toml"
    settings.write_text(settings.read_text().replace("idle_seconds = 3.0", "idle_seconds = 0.5"))  # all are there
    for number, arm in enumerate(ARMS):  # as if each device had decided so
        home.node(number).mkdir(parents=True)
        (home.node(number) / "arm").write_text(arm)
    with ExitStack() as stack:
        server = stack.enter_context(command("federation", "serve", home.path))
        wait_until_served(home, server, seconds=120)
        for store in sorted(stores.glob("*.sqlite")):
            stack.enter_context(command("federation", "join", home.path, "--data", store))
        a_run_without_users(home, config, tmp_path / "own" / "run", users, fedgram)
        published = fedgram(
            "federation", "publish", home.path, tmp_path / "own" / "run" / "lm.fgram", "--wait", 0.5, "--json"
        )
        assert (published["version"], published["installed"]) == (1, len(ARMS))
        given = (new, network, "--baseline", old)
        ours = fedgram("federation", "evaluate", home.path, *given, "--over-selection", 1, "--json")
        status = fedgram("federation", "status", home.path, "--json")
    here = fedgram("evaluate", *given, "--users", users, "--json")
    assert (ours["split"], ours["reports"], ours["users"], ours["buckets"]) == ("test", TESTERS, TESTERS, 1)
    assert printed(ours) == printed(here)
    for name in ("words", "shared_words", "outside", "baseline"):
        assert ours[name] == here[name]
    assert [(home.node(number) / "arm").read_text() for number in range(len(ARMS))] == list(ARMS)
    assert status["task"] == "evaluation"
    assert ours["bytes_down"] > TESTERS * sum(path.stat().st_size for path in (new, network))
    nothing_of_the_devices_is_there(home, tmp_path / "own", stores)


def a_run_without_users(home: Folder, config: Path, workspace: Path, users: Path, fedgram: Callable[..., Any]) -> None:
    """All stages; the figures of the test arm are those of `fedgram evaluate` on the same users."""
    ran = fedgram("federation", "run", home.path, config, "-w", workspace, "--workers", 1, "--json")
    assert "clipping" in ran["ran"]
    told: dict[str, Mapping[str, Any]] = {
        name: json.loads((workspace / f"{name}.json").read_text())
        for name in ("R_W", "final", "evaluation", "clipping")
    }
    assert {part["measured_on"] for part in told.values()} == {"devices"}
    assert [point["round"] for point in told["R_W"]["dev"]] == [2]
    assert (told["R_W"]["reports"], told["R_W"]["best_round"]) == (4, 2)
    assert {"Baseline", "A_W_e", "A_W_r", "Refit"} <= told["final"]["dev_top1"].keys()
    assert (told["evaluation"]["split"], told["evaluation"]["users"]) == ("test", TESTERS)
    assert (told["clipping"]["devices"], [row["clip"] for row in told["clipping"]["rows"]]) == (2, [1.0, None])
    here = fedgram("evaluate", workspace / "lm.fgram", "--users", users, "--json")["models"][0]
    for name in ("top1", "top3", "oov_rate", "keystroke_savings"):
        assert told["evaluation"]["uncased"]["models"]["lm.fgram"][name]["value"] == here[name]["value"]
    assert f"{TESTERS} devices of the test arm" in (workspace / "report" / "report.md").read_text()


def nothing_of_the_devices_is_there(home: Folder, own: Path, stores: Path) -> None:
    """No file or log of the server has a word that only devices have; the same search finds all of them on devices."""
    assert words_found(stores) == set(PLANTED)
    assert words_found(home.path, besides="nodes") == words_found(own) == set()
    assert (home.server / "log.jsonl").stat().st_size > 0
    assert (home.server / "superlink.log").stat().st_size > 0
    for model in (open_model(own / "run" / "lm.fgram").words, read_ngram(own / "run" / "final.ngram").vocabulary.words):
        assert not set(PLANTED) & {word.lower() for word in model}

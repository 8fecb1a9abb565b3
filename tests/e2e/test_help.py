"""Every help text ends with examples, and the examples run; earlier names still work, with a hint."""

import io
import json
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from fedgram.cli.commands import Command, Group, LazyGroup, Option
from fedgram.cli.main import cli, run
from fedgram.privacy.accounting import Gaussian
from fedgram.privacy.ledger import Ledger
from fedgram.text.synthetic.typists import SyntheticPopulation

UNTIL_STOPPED = ("keyboard", "serve", "join", "collect")  # these commands are started, and stopped when they answer
CONFIG = """
[population]
typists = 30
supplement_sentences = 200
[unigrams]
rounds = 1
devices_per_round = 3
"""


def commands(command: click.Command = cli, path: tuple[str, ...] = ("fedgram",)) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(path), command
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            inner = command.get_command(click.Context(command), name)
            assert inner is not None
            yield from commands(inner, (*path, name))


ALL = dict(commands())
EXAMPLES = sorted({example for command in ALL.values() for example in getattr(command, "examples", ())})


@pytest.mark.parametrize("name", ALL)
def test_every_help_says_what_it_does_and_ends_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ALL[name]
    assert isinstance(command, Command | Group)
    assert 2 <= len(command.examples) <= 3
    assert all(example.startswith(name) for example in command.examples)
    assert run([*name.split()[1:], "--help"]) == 0
    text = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in text[-len(command.examples) :]] == list(command.examples)
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help, f"{name} {parameter.opts[0]} has no help"
            assert parameter.help.rstrip("]")[-1] not in ",;", f"{name} {parameter.opts[0]}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that examples read."""
    home, source = tmp_path_factory.mktemp("examples"), SyntheticPopulation("en_us", seed=5)
    here = [sys.executable, "-m", "fedgram"]

    def make(line: str) -> None:
        subprocess.run([*here, *shlex.split(line)], cwd=home, check=True, capture_output=True)

    make("data synthesize --users 60 -o users.parquet --supplement supplement.txt --sentences 600 "
         "--whitelist whitelist.txt")  # fmt: skip
    text = (home / "supplement.txt").read_text().splitlines()
    (home / "corpus.txt").write_text("\n".join(text[:500]) + "\n")
    (home / "test.txt").write_text("\n".join(text[500:]) + "\n")
    (home / "book.txt").write_text("It was late. Nobody came!\n")
    (home / "messages.csv").write_text("who,said\nann,See you there!\nbob,ok\n")
    with zipfile.ZipFile(home / "export.zip", "w") as archive:
        archive.writestr("_chat.txt", "[31.12.20, 22:15:30] Ann: See you there!\n")
    (home / "chats").mkdir()
    for user in range(3):
        (home / "chats" / f"{user}.txt").write_text("\n".join(source.messages(user)) + "\n")
    make("data synthesize --users 20 --seed 1 -o more.parquet")
    make("ngram train corpus.txt -o model.arpa")
    make("ngram train test.txt --order 2 -o b.arpa")
    make("ngram count corpus.txt -o corpus.counts")
    for name in ("a.arpa", "A_W.arpa"):
        shutil.copy(home / "model.arpa", home / name)
    (home / "lower.txt").write_text((home / "corpus.txt").read_text().lower())
    make("ngram train lower.txt -o A_u.arpa")
    words = sorted(set((home / "lower.txt").read_text().split()))
    (home / "words.txt").write_text("\n".join(words) + "\n")
    (home / "words.tsv").write_text("".join(f"{word}\t{1 + i % 7}\n" for i, word in enumerate(words)))
    make(
        "federated unigrams collect --users users.parquet --whitelist whitelist.txt --devices-per-round 20 "
        "-o U.unigrams"
    )
    make("network pieces train --unigrams U.unigrams --size 200 -o pieces.model")
    make("federated train --users users.parquet --unigrams U.unigrams --preset W_demo --rounds 10 --workers 1 "
         "--devices-per-round 20 -o R_W.safetensors")  # fmt: skip
    shutil.rmtree(home / "R_W.safetensors.checkpoints")
    make("phone pack model.arpa -o lm.fgram")
    make("phone pack b.arpa -o other.fgram")
    for name in ("en_us.fgram", "pt_br.fgram"):
        shutil.copy(home / "lm.fgram", home / name)
    ledger = Ledger.open(home / "privacy.json")
    ledger.plan("counts", Gaussian(2.0))
    ledger.spend("counts")
    figure = {"value": 1.0, "ci95": None}
    models = {
        "a": dict.fromkeys(("top1", "top3", "oov_rate", "perplexity", "sll", "sll_e", "keystroke_savings"), figure)
    }
    languages = {"en_us": {"baseline": "a", "final": "a", "models": models}}
    (home / "results.json").write_text(json.dumps({"title": "A run", "languages": languages}))
    (home / "workspace" / "report").mkdir(parents=True)
    shutil.copy(home / "results.json", home / "workspace" / "report")
    (home / "config.toml").write_text(CONFIG)
    return home


def stopped(words: list[str], folder: Path) -> None:
    """Start a command, and stop it when it says that it is there."""
    with subprocess.Popen(
        [sys.executable, "-m", "fedgram", *words], cwd=folder, stderr=subprocess.PIPE, text=True
    ) as p:
        try:
            assert p.stderr is not None
            assert "Ctrl-C" in p.stderr.readline()
        finally:
            p.terminate()


def _command(words: list[str]) -> list[str]:
    """The name of the command in its arguments."""
    return max((name.split() for name in ALL if ["fedgram", *words][: len(name.split())] == name.split()), key=len)


@pytest.mark.parametrize("example", [e for e in EXAMPLES if not e.startswith("fedgram federation")])
def test_an_example_runs(
    example: str, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(world, tmp_path, dirs_exist_ok=True)
    line, _, given = example.partition(" < ")
    words = shlex.split(line)[1:]
    if words == ["demo"]:
        pytest.skip("the demo has a test of its own")
    if words[1] in UNTIL_STOPPED:
        if "--port" not in words:
            words += ["--port", "0"]
        stopped(words, tmp_path)
        return
    if any(parameter.name == "compute_workers" for parameter in ALL[" ".join(_command(words))].params):
        words += ["--workers", "1"]  # several tests share the machine
    if given:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((tmp_path / given).read_bytes())))
    monkeypatch.chdir(tmp_path)
    code = run(words)
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "is now" not in err
    if "--json" in words:
        json.loads(out)


@pytest.mark.parametrize(
    ("old", "new"),
    [("pack --help", "phone pack"), ("unigrams info --help", "federated unigrams"),
     ("train --list-presets", "network presets"), ("distill none.arpa --topology infer -o x.arpa", "distill model")],
)  # fmt: skip
def test_old_names_work_and_tell_the_new_ones(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(old.split())
    out, err = capsys.readouterr()
    assert f"is now `fedgram {new}" in err
    assert code == (2 if "none.arpa" in old else 0)
    assert out or code


def test_every_command_of_earlier_versions_is_known() -> None:
    assert isinstance(cli, LazyGroup)
    for old, new in cli.moved.items():
        assert old not in cli.places
        assert f"fedgram {new}" in ALL


def test_renamed_options_work_and_tell_the_new_names(
    world: Path, tmp_path: Path, fedgram: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    command = ALL["fedgram federated train"]
    renamed = {old: p.opts[0] for p in command.params if isinstance(p, Option) for old in p.formerly}
    assert renamed["--client-lr"] == "--client-rate"
    code = run(
        ["federated", "train", "--users", str(world / "users.parquet"), "--unigrams", str(world / "U.unigrams"),
         "--preset", "W_demo", "--rounds", "1", "--workers", "1", "--client-lr=0.1", "--clients-per-round", "9",
         "--dev-users", "0", "-o", str(tmp_path / "R.safetensors"), "--json"]
    )  # fmt: skip
    out, err = capsys.readouterr()
    assert code == 0
    assert err.count("is now") == 2
    assert json.loads(out)["reports"] == 9
    listed = fedgram("network", "presets", "--json")["presets"]
    assert run(["train", "--list-presets", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["presets"] == listed


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_examples_of_a_federation_run(world: Path, tmp_path: Path, fedgram: Callable[..., Any]) -> None:
    """In the order in which a person would, with a server and devices on this machine."""
    pytest.importorskip("flwr")
    shutil.copytree(world, tmp_path, dirs_exist_ok=True)
    (tmp_path / "shared").mkdir()
    left = {e for e in EXAMPLES if e.startswith("fedgram federation")}
    here, running = [sys.executable, "-m", "fedgram"], list[Any]()

    def start(line: str) -> None:
        left.discard(f"fedgram {line}")
        with (tmp_path / "log").open("ab") as log:
            running.append(subprocess.Popen([*here, *shlex.split(line)], cwd=tmp_path, stderr=log, stdout=log))

    def do(line: str) -> None:
        left.discard(f"fedgram {line}")
        done = subprocess.run([*here, *shlex.split(line)], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stderr, (tmp_path / "log").read_text())

    do("federation init fed --host fed.example.org --masked-with 10")
    shutil.rmtree(tmp_path / "fed")
    do("federation init fed")
    toml = (tmp_path / "fed" / "federation.toml").read_text()
    toml = toml.replace("port = 8765", f"port = {free_port()}", 1).replace("idle_seconds = 60.0", "idle_seconds = 3.0")
    toml = toml.replace("masked_with = 20", "masked_with = 3", 1)
    (tmp_path / "fed" / "federation.toml").write_text(toml)
    do("federation devices users.parquet --split dev -o stores --json")
    shutil.rmtree(tmp_path / "stores")
    do("federation devices users.parquet --most 3 -o stores")
    numbers = sorted(int(path.stem) for path in (tmp_path / "stores").glob("*.sqlite"))
    assert numbers[0] == 0
    try:
        start("federation serve fed")
        while not fedgram("federation", "status", tmp_path / "fed", "--json")["serving"]:
            time.sleep(0.3)
        do("federation status fed")
        do("federation status fed --json")
        for number in numbers[1:]:
            start(f"federation join fed --data stores/{number}.sqlite")
        start("federation join fed --data stores/0.sqlite")
        do("federation run fed config.toml -w run --dry-run")
        do("federation run fed config.toml -w run --until unigrams")
        do("federation evaluate fed lm.fgram --arm train")
        do("federation evaluate fed other.fgram --baseline lm.fgram --arm train --json")
        do("federation publish fed other.fgram --wait 1")
        do("federation power --effect 0.5 --words-per-device 300")
        do("federation power --effect 2 --words-per-device 300 --devices 10000 --json")
        start("federation collect fed shared")
        while "collecting for runs in shared" not in (tmp_path / "log").read_text():
            time.sleep(0.2)
        key = next((tmp_path / "fed" / "nodes").glob("*/key.pub")).read_bytes()
        (tmp_path / "device-7.pub").write_bytes(key)
        refused = subprocess.run(
            [*here, "federation", "admit", "fed", "7", "device-7.pub"], cwd=tmp_path, capture_output=True, text=True
        )
        assert "was admitted before" in refused.stderr
        do("federation renew fed")
        do("federation renew fed --revoke --also 10.0.0.5")
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait(30)
    others = {"serve fed --metrics-port 9464", "join fed --data stores/0.sqlite --only-when charging --only-when idle",
              "admit fed 7 device-7.pub", "admit fed 8 fed/nodes/device-8/key.pub",
              "revoke fed 7", "revoke fed 8",
              "collect fed /mnt/shared", "publish fed lm.fgram --share 0.01 --wait 1",
              "publish fed --rollback --wait 1 --json",
              # tests/e2e/test_live_experiment.py runs experiments
              "experiment fed --control lm.fgram --treatment other.fgram --share 1 --days 7 --once",
              "experiment fed --control lm.fgram --treatment other.fgram --share 1 --days 7 --once --json"}  # fmt: skip
    assert left == {f"fedgram federation {example}" for example in others}  # the same commands with other values


def free_port() -> int:
    from fedgram.deployment.keys import free_port

    return free_port()

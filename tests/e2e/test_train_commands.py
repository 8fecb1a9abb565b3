"""Federated training from the command line: it learns, resumes wherever it is killed, and refuses nonsense."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgram.core.checkpoint import Checkpoints
from fedgram.federated import devices
from fedgram.neural.network import read_network
from fedgram.text.normalize import uncase
from fedgram.text.population import population_from_messages, write_population
from fedgram.text.synthetic.typists import SyntheticPopulation

RUN = ["--preset", "W_demo", "--devices-per-round", 12, "--max-sentences", 12, "--evaluate-every", 2, "--dev-users", 4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A population with users of all splits, and word frequencies."""
    made = tmp_path_factory.mktemp("train")
    people = population_from_messages(SyntheticPopulation("en_us", seed=3).rows(60))
    write_population(made / "users.population", people)
    counts: dict[str, int] = {}
    for word, n in zip(people.words, np.bincount(people.token, minlength=len(people.words)).tolist(), strict=True):
        counts[uncase(word)] = counts.get(uncase(word), 0) + n
    ranked = sorted(counts, key=lambda w: (-counts[w], w))
    (made / "words.tsv").write_text("".join(f"{w}\t{counts[w]}\n" for w in ranked))
    return made


def arguments(folder: Path, output: Path, *more: object) -> list[str]:
    common = ["federated", "train", "--users", folder / "users.population", "--unigrams", folder / "words.tsv", *RUN]
    return [str(a) for a in [*common, "--workers", 1, "-o", output, *more]]


def test_training_learns_and_scores_say_so(fedgram: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    output, plots = tmp_path / "R.safetensors", tmp_path / "plots"
    result = fedgram(*arguments(folder, output, "--rounds", 6, "--plots", plots, "--json"))
    assert result["rounds"] == 6
    assert [p["round"] for p in result["curve"]] == [2, 4, 6]
    assert result["curve"][-1]["sll_e"] > result["curve"][0]["sll_e"]
    assert (plots / "likelihood.png").stat().st_size > 5000
    scores = fedgram(
        "network", "score", output, "--users", folder / "users.population", "--split", "dev", "--max-users", 4, "--json"
    )
    best = next(p for p in result["curve"] if p["round"] == result["best_round"])
    for name in ("sll", "sll_e", "perplexity", "top1", "top3"):
        assert scores[name] == pytest.approx(best[name], rel=1e-6)
    assert scores["sll"] <= scores["sll_e"] < 0
    again = fedgram(*arguments(folder, tmp_path / "S.safetensors", "--rounds", 6, "--start", output, "--json"))
    assert again["loss"] < result["loss"]


def test_masked_training_is_plain_training(fedgram: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    """To the bit, though the plain command trains devices in stacks, and the masked one by one."""
    secure = ("--secure-aggregation",)
    plain, masked = (
        fedgram(*arguments(folder, tmp_path / f"{len(more)}.safetensors", "--rounds", 2, "--json", *more))
        for more in ((), secure)
    )
    assert (masked["loss"], masked["dev_sll_e"]) == (plain["loss"], plain["dev_sll_e"])
    assert (masked["abandoned_rounds"], masked["reports"]) == (0, plain["reports"])
    assert masked["bytes_up"] > 7 * masked["parameters"] * masked["reports"]


def test_masked_training_that_cannot_be_is_refused(refused: Callable[..., str], folder: Path, tmp_path: Path) -> None:
    few = arguments(folder, tmp_path / "R.safetensors", "--rounds", 1, "--secure-aggregation", "--over-selection", 1)
    few[few.index("--devices-per-round") + 1] = "1"
    assert "a round of 1 devices is too small: secure aggregation needs at least 2" in refused(*few)


def test_a_training_at_a_wild_rate_stays_bounded(fedgram: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    """Each round moves the model by the limit on updates at most, times what momentum can make of it."""
    wild = ("--client-rate", 300, "--update-norm", 1, "--dev-users", 0)
    fedgram(*arguments(folder, tmp_path / "start.safetensors", "--rounds", 1, "--client-rate", 1e-9, "--dev-users", 0))
    fedgram(*arguments(folder, tmp_path / "R.safetensors", *wild, "--rounds", 4))
    before, after = (read_network(tmp_path / name).weights for name in ("start.safetensors", "R.safetensors"))
    moved = np.sqrt(sum(float(((after[name] - w).astype(np.float64) ** 2).sum()) for name, w in before.items()))
    assert 1 < moved <= 4 * 1 / (1 - 0.9)


def test_a_training_that_diverges_says_so(refused: Callable[..., str], folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "R.safetensors"
    line = refused(*arguments(folder, output, "--client-rate", 1e30, "--update-norm", "inf", "--rounds", 4))
    assert "the training diverged: round 1 was abandoned 5 times" in line
    assert "too large" in line
    assert "lower the clients' or the server's learning rate" in line
    assert not output.exists()


def test_two_workers_write_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    for workers in (1, 2):
        command = arguments(folder, tmp_path / f"{workers}.safetensors", "--rounds", 2)
        command[command.index("--workers") + 1] = str(workers)
        subprocess.run([sys.executable, "-m", "fedgram", *command], check=True, capture_output=True)
    assert (tmp_path / "1.safetensors").read_bytes() == (tmp_path / "2.safetensors").read_bytes()


@contextmanager
def two_workers(folder: Path, output: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A long training by two processes, and the file that lists the number of the second."""
    command = arguments(folder, output, "--rounds", 1000)
    command[command.index("--workers") + 1] = "2"
    command = [sys.executable, "-m", "fedgram", *command]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        if not children.exists():
            process.kill()
            pytest.skip("this system does not list the children of a process")
        yield process, children


def test_workers_end_with_whoever_started_them(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "R.safetensors"
    with two_workers(folder, output) as (process, children):
        while not newest(output):
            assert process.poll() is None
            time.sleep(0.1)
        workers = [Path("/proc", pid) for pid in children.read_text().split()]
        assert len(workers) == 1
        process.kill()
    end = time.monotonic() + 120
    while any(runs(worker) for worker in workers):
        assert time.monotonic() < end, "a worker is left behind"
        time.sleep(0.1)


@pytest.mark.parametrize("when", ["before they meet", "while they train"])
def test_a_lost_worker_ends_the_others_with_a_line(folder: Path, tmp_path: Path, when: str) -> None:
    output = tmp_path / "R.safetensors"
    with two_workers(folder, output) as (process, children):
        while not children.read_text().split() or (when == "while they train" and not newest(output)):
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
        _, said = process.communicate(timeout=240)
    assert process.returncode == 2
    assert "Traceback" not in said
    assert "a worker process ended" in said or "another process of this training or counting has gone" in said


@pytest.mark.parametrize("rounds", [4, pytest.param(30, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_killed_anywhere_and_resumed_it_writes_the_same_bytes(
    fedgram: Callable[..., Any], folder: Path, tmp_path: Path, rounds: int
) -> None:
    whole, killed = tmp_path / "whole.safetensors", tmp_path / "killed.safetensors"
    fedgram(*arguments(folder, whole, "--rounds", rounds))
    draw, kills = random.Random(5), 0
    command = [sys.executable, "-m", "fedgram", *arguments(folder, killed, "--rounds", rounds)]
    while True:
        before = newest(killed)
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and newest(killed) == before:
                time.sleep(0.002)
            time.sleep(draw.random() * 0.1)
            if process.poll() is not None:
                assert process.returncode == 0
                break
            process.send_signal(signal.SIGKILL)
            kills += 1
    assert kills >= rounds // 6 + 1
    assert killed.read_bytes() == whole.read_bytes()


def runs(process: Path) -> bool:
    """Whether a process of /proc still does; one that nobody has waited for does not."""
    try:
        return "State:\tZ" not in (process / "status").read_text()
    except OSError:
        return False


def newest(output: Path) -> list[str]:
    return sorted(path.name for path in Path(f"{output}.checkpoints").glob("*.safetensors"))[-1:]


def test_a_damaged_checkpoint_is_passed_over(
    fedgram: Callable[..., Any], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_CHECKPOINT_PAUSE", 0.0)  # one after every round
    whole, output = tmp_path / "whole.safetensors", tmp_path / "R.safetensors"
    fedgram(*arguments(folder, whole, "--rounds", 4))
    fedgram(*arguments(folder, output, "--rounds", 4))
    newest = sorted(Path(f"{output}.checkpoints").glob("*"))[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    output.unlink()
    fedgram(*arguments(folder, output, "--rounds", 4))
    assert output.read_bytes() == whole.read_bytes()


def test_a_new_start_leaves_no_older_checkpoints(fedgram: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "R.safetensors"
    for rounds in (3, 1):
        fedgram(*arguments(folder, output, "--rounds", rounds, "--restart"))
    assert [path.name for path in Path(f"{output}.checkpoints").glob("*")] == ["00000001.safetensors"]
    assert fedgram(*arguments(folder, output, "--rounds", 1, "--json"))["rounds"] == 1


def test_other_settings_are_not_resumed(
    fedgram: Callable[..., Any], refused: Callable[..., str], folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "R.safetensors"
    fedgram(*arguments(folder, output, "--rounds", 2))
    line = refused(*arguments(folder, output, "--rounds", 2, "--client-rate", 0.25))
    assert "other settings: fedavg.plan" in line
    assert "start again with --restart" in line
    for old in Path(f"{output}.checkpoints").glob("*"):
        old.write_bytes(b"nothing")
    assert "no checkpoint can be read" in refused(*arguments(folder, output, "--rounds", 2))
    assert Checkpoints(tmp_path / "nowhere", {}).newest() is None


def test_word_pieces(fedgram: Callable[..., Any], refused: Callable[..., str], folder: Path, tmp_path: Path) -> None:
    pieces, output = tmp_path / "p.model", tmp_path / "P.safetensors"
    fedgram("network", "pieces", "train", "--unigrams", folder / "words.tsv", "--size", 500, "-o", pieces)
    wanted = [*arguments(folder, output, "--rounds", 1, "--pieces", pieces)]
    assert "network of words" in refused(*wanted)
    wanted[wanted.index("W_demo")] = "P_demo"
    assert "502 word pieces, and P_demo needs 1,000" in refused(*wanted)
    missing = [a for a in wanted if a not in ("--pieces", str(pieces))]
    assert "is a network of word pieces; give it some" in refused(*missing)


def test_bad_input_is_refused(refused: Callable[..., str], folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "R.safetensors"
    good = arguments(folder, output, "--rounds", 1)
    assert "there is no preset" in refused(*[a if a != "W_demo" else "W_3K" for a in good])
    nobody = population_from_messages([("a", "hello there", "dev")])
    write_population(tmp_path / "nobody.population", nobody)
    users = str(folder / "users.population")
    assert "no users in the train split" in refused(
        *[a if a != users else str(tmp_path / "nobody.population") for a in good]
    )
    (tmp_path / "words.tsv").write_text("łódź\t5\n")
    words = str(folder / "words.tsv")
    assert "no word of the network's vocabulary" in refused(
        *[a if a != words else str(tmp_path / "words.tsv") for a in good]
    )
    assert "must be a number above 0" in refused(*good, "--client-rate", -1)
    assert "does not exist" in refused(
        *[a if a != str(output) else str(tmp_path / "no" / "R.safetensors") for a in good]
    )
    assert "is damaged or not" in refused("network", "score", words, "--users", users)


def test_pretraining_helps(fedgram: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{m}\n" for u in range(30) for m in SyntheticPopulation("en_us", seed=9).messages(u)))
    network, words = tmp_path / "R0.safetensors", folder / "words.tsv"
    fedgram(
        "network",
        "pretrain",
        text,
        "--unigrams",
        words,
        "--preset",
        "W_demo",
        "--epochs",
        2,
        "--rows",
        8,
        "-o",
        network,
    )
    once = ("--rounds", 1, "--dev-users", 0, "--json")
    cold = fedgram(*arguments(folder, tmp_path / "c.safetensors", *once))
    warm = fedgram(*arguments(folder, tmp_path / "w.safetensors", *once, "--start", network))
    assert warm["loss"] < cold["loss"]
    assert read_network(network).about["central"] is True


def test_a_start_must_be_what_is_asked_for(
    fedgram: Callable[..., Any], refused: Callable[..., str], folder: Path, tmp_path: Path
) -> None:
    network, words, output = tmp_path / "R0.safetensors", folder / "words.tsv", tmp_path / "R.safetensors"
    fedgram(*arguments(folder, network, "--rounds", 1))
    wanted = arguments(folder, output, "--rounds", 1, "--start", network)
    line = refused(*[a if a != "W_demo" else "W_30K" for a in wanted])
    assert "is not what W_30K asks for: embedding 32, not 96, hidden 96, not 670" in line
    assert line.endswith("choose its own: --preset W_demo")
    lines = words.read_text().splitlines()
    for change, problem in (
        ([*lines[5:], "łódź\t1"], "5 of its words are not among the most frequent unigrams, 1 of these are not"),
        ([lines[1], lines[0], *lines[2:]], "in another order"),
    ):
        (tmp_path / "words.tsv").write_text("\n".join(change) + "\n")
        line = refused(*[a if a != str(words) else str(tmp_path / "words.tsv") for a in wanted])
        assert problem in line
        assert line.endswith("give those it was trained with: --unigrams")
    assert not output.exists()


def test_the_presets_are_table_2(fedgram: Callable[..., Any]) -> None:
    table = fedgram("network", "presets")
    assert "P_4K-G" in table
    assert "2.73 (2.71)" in table


def test_a_network_is_evaluated_as_it_is_scored(fedgram: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    output, users = tmp_path / "R.safetensors", folder / "users.population"
    fedgram(*arguments(folder, output, "--rounds", 2))
    scores = fedgram("network", "score", output, "--users", users, "--split", "test", "--json")
    judged = fedgram("evaluate", output, "--users", users, "--split", "test", "--json")
    for name in ("top1", "top3", "perplexity", "sll", "sll_e"):
        assert judged["models"][0][name]["value"] == pytest.approx(scores[name], rel=1e-5), name


@pytest.mark.parametrize("command", ["federated train", "network pretrain", "network score", "evaluate"])
def test_without_torch_one_line_says_what_to_install(
    refused: Callable[..., str], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name in [n for n in sys.modules if n.startswith(("fedgram.neural", "fedgram.training", "fedgram.cli"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    users, words, output = folder / "users.population", folder / "words.tsv", tmp_path / "R.safetensors"
    more = {
        "federated train": ["--users", users, "--unigrams", words, "-o", output],
        "network pretrain": [words, "--unigrams", words, "-o", output],
        "network score": [output, "--users", users],
        "evaluate": [output, "--users", users],
    }[command]
    assert "fedgram[neural]" in refused(*command.split(), *more)

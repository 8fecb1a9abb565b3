"""Every block of code in README and docs runs, or is at least a command that exists, with options that it has.

A page's blocks run in order in one folder. A command whose comment says that it needs something that the tests do not
have is checked for its options only; so are the commands of pages that are not tutorials.
"""

import os
import re
import shlex
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import click
import pytest

import fedgram as fg
from fedgram.cli.main import cli
from fedgram.text.synthetic.typists import SyntheticPopulation

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [p for p in PAGES if p.name not in ("commands.md", "report.md")]  # generated, with tests of their own
TUTORIALS = [p for p in PAGES if p.parent.name == "howto"]
LANGUAGES = {"sh", "python", "toml", "text", "json", "js", "yaml"}
NOT_RUN = ("needs a GPU", "needs your files", "needs more devices", "takes minutes", "runs until stopped")
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text("utf-8"))


def lines(block: str) -> Iterator[tuple[str, str]]:
    """The commands of a block, each with its comment."""
    for line in block.replace("\\\n", " ").splitlines():
        command, _, comment = line.partition("  #")
        if command.strip() and not command.startswith("#"):
            yield command.strip(), comment.strip()


def fedgram_calls(command: str) -> Iterator[list[str]]:
    """The words after `fedgram`, for each call in a line of shell."""
    for part in re.split(r" \| |;| && |\bdo\b", command):
        words = shlex.split(part, comments=True)
        if "fedgram" in words[:6]:
            yield words[words.index("fedgram") + 1 :]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_have_a_language_and_commands_exist(page: Path) -> None:
    for language, block in blocks(page):
        assert language in LANGUAGES, f"a block of {name(page)} has no language: {block[:60]!r}"
        if language == "toml":
            tomllib.loads(block)
        for command, _ in lines(block) if language == "sh" else ():
            for words in fedgram_calls(command):
                check(words, f"{name(page)}: {command}")


def check(words: list[str], where: str) -> None:
    """Fail if there is no such command, or if it has no such option."""
    command: click.Command = cli
    context = click.Context(command)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.get_command(context, words[0])
        assert inner is not None, f"{where}: no command {words[0]}"
        command, words = inner, words[1:]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    given = {word.split("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}
    assert given <= known | {"--help"}, f"{where}: no option {', '.join(given - known)}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder but for two packed models, to work in."""
    for language in ("en_us", "pt_br"):
        sentences = [" ".join(words) for words in SyntheticPopulation(language, seed=1).clean_sentences(300)]
        fg.pack(fg.NGramModel.train(sentences, order=2), tmp_path / f"{language}.fgram")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", TUTORIALS, ids=name)
def test_a_tutorial_runs(page: Path, folder: Path) -> None:
    names: dict[str, object] = {}
    place = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    with ExitStack() as running:
        for language, block in blocks(page):
            if language == "python":
                exec(compile(block, str(page), "exec"), names)
            for command, comment in lines(block) if language == "sh" else ():
                if not any(reason in comment for reason in NOT_RUN) and not command.startswith(
                    "fedgram phone keyboard"
                ):
                    shell(command, folder, {**os.environ, **place}, running)


def shell(command: str, folder: Path, environment: dict[str, str], running: ExitStack) -> None:
    """Run one line, or start what ends with `&` until the page is over."""
    if "&" in command:
        log = running.enter_context((folder / "log").open("ab"))
        group = subprocess.Popen(
            ["bash", "-c", f"{command}\nwait"], cwd=folder, env=environment, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        running.callback(end, group)
        if "federation serve" in command:
            wait_until_served(folder / command.split()[3])
        return
    done = subprocess.run(["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True)
    log_path = folder / "log"
    assert done.returncode == 0, (command, done.stderr, log_path.read_text() if log_path.exists() else "")
    if command.startswith("fedgram federation init"):
        for_tests(folder / command.split()[3] / "federation.toml")


def wait_until_served(home: Path) -> None:
    """A person would see that the server is there."""
    from fedgram.deployment.folder import open_folder

    address = open_folder(home).config
    for _ in range(600):
        with suppress(OSError), socket.create_connection((address.host, address.port), 1):
            return
        time.sleep(0.1)
    raise AssertionError("the server does not answer")


def end(group: "subprocess.Popen[bytes]") -> None:
    """End a process and those that it started."""
    os.killpg(group.pid, 15)
    group.wait(30)


def for_tests(settings: Path) -> None:
    """Another port, because several tests share the machine, and little patience."""
    from fedgram.deployment.keys import free_port

    text = settings.read_text().replace("idle_seconds = 60.0", "idle_seconds = 2.0")
    settings.write_text(re.sub(r"^port = \d+", f"port = {free_port()}", text, count=1, flags=re.MULTILINE))

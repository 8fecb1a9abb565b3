"""Every block of code in README and docs runs, or says why it cannot.

A page's blocks run in order in one folder. A command does not run if its comment begins with a reason, such as "needs a
GPU"; a block of Python does not run if its first line is such a comment. A block of TOML with a title becomes a file of
this name. What a block with the title "prints" says must be in the output of the command before it.
"""

import os
import re
import shlex
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import click
import pytest

import fedgram as fg
from fedgram.cli.main import cli
from fedgram.text.synthetic.typists import SyntheticPopulation

ROOT = Path(__file__).parents[2]
GENERATED = ("commands.md", "api.md", "report.md")  # by code, with tests of their own
PAGES = [p for p in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if p.name not in GENERATED]
LANGUAGES = {"sh", "python", "toml", "text", "json", "js", "yaml"}
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REASON = re.compile(r"needs |takes minutes|runs until stopped")
ELSEWHERE = {  # pages whose commands do not run here, although they exist and have these options
    "README.md": "its Python runs in tests/architecture/test_surface.py; scripts/test is what runs this",
    "docs/library.md": "runs in tests/architecture/test_surface.py",
    "docs/results/audits.md": "the commands that made the figures take minutes each",
    "docs/results/README.md": "its commands need users' text and a GPU",
    "docs/results/privacy.md": "its commands need users' text",
    "docs/results/networks.md": "its commands need users' text and a GPU",
    "docs/results/distillation.md": "its commands need users' text",
}
MARKS = {"docs/howto/federation.md": pytest.mark.early, "docs/tour.md": pytest.mark.slow}


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """The language, title and content of every block."""
    for about, block in BLOCK.findall(page.read_text("utf-8")):
        language, _, rest = about.partition(" ")
        yield language, rest.removeprefix('title="').removesuffix('"'), block


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


def is_run(page: Path) -> bool:
    """Whether a page has something to run, and runs here."""
    has_code = any(language in ("sh", "python") for language, _, _ in blocks(page))
    return has_code and name(page) not in ELSEWHERE


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_blocks_have_a_language_and_commands_exist(page: Path) -> None:
    prose = BLOCK.sub("", page.read_text("utf-8"))
    assert not re.search(r"^    (fedgram|python3?|scripts/)", prose, re.MULTILINE), "commands are in fenced blocks"
    for language, _, block in blocks(page):
        assert language in LANGUAGES, f"a block of {name(page)} has no language: {block[:60]!r}"
        if language == "toml":
            tomllib.loads(block)
        if language == "python":
            compile(block, name(page), "exec")
        if language == "sh":
            parsed = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True)
            assert parsed.returncode == 0, f"{name(page)}: {parsed.stderr}"
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


def test_pages_that_do_not_run_here_exist() -> None:
    assert {name(page) for page in PAGES} >= ELSEWHERE.keys()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=MARKS.get(name(p), ()), id=name(p)) for p in PAGES if is_run(p)],
)
def test_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if prepare := READY.get(name(page)):
        prepare(tmp_path)
    names: dict[str, object] = {}
    place = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    printed = ""
    with ExitStack() as running:
        for language, title, block in blocks(page):
            if language == "toml" and title:
                (tmp_path / title).write_text(block)
            if language == "python" and not REASON.match(block.removeprefix("# ")):
                exec(compile(block, str(page), "exec"), names)
            if title == "prints":
                assert_in_order(block, printed)
            for command, comment in lines(block) if language == "sh" else ():
                if command.startswith("fedgram phone keyboard"):
                    assert_served(command, {**os.environ, **place})
                elif not REASON.match(comment):
                    printed = shell(command, tmp_path, {**os.environ, **place}, running)


def assert_in_order(block: str, printed: str) -> None:
    """Each line of a block is a line of the output, and later than the line before it."""
    rest = iter(printed.splitlines())
    for line in block.splitlines():
        assert line in rest, f"{line!r} is not in {printed!r}"


def shell(command: str, folder: Path, environment: dict[str, str], running: ExitStack) -> str:
    """Run one line, or start what ends with `&` until the page is over; what it printed."""
    if "& " in f"{command} ".replace("&& ", ""):
        log = running.enter_context((folder / "log").open("ab"))
        group = subprocess.Popen(
            ["bash", "-c", f"{command}\nwait"], cwd=folder, env=environment, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        running.callback(end, group)
        if "federation serve" in command:
            wait_until_served(folder / command.split()[3])
        return ""
    done = subprocess.run(["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True)
    log_path = folder / "log"
    assert done.returncode == 0, (command, done.stderr, log_path.read_text() if log_path.exists() else "")
    if command.startswith("fedgram federation init"):
        for_tests(folder / command.split()[3] / "federation.toml")
    return done.stdout


def assert_served(command: str, environment: dict[str, str]) -> None:
    """A keyboard says where it is, and is stopped."""
    started = subprocess.Popen(
        ["bash", "-c", f"exec {command} --port 0"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    assert started.stdout
    try:
        assert any("http://127.0.0.1:" in line for line in started.stdout), command
    finally:
        os.killpg(started.pid, 15)
        started.wait(30)
        started.stdout.close()


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


# What pages take for granted, because their readers have it.


def demo_output(folder: Path) -> None:
    """What `scripts/demo` leaves, from a run of the same stages that is over in seconds."""
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "activate").touch()
    (folder / "demo.toml").write_text(SMALL_DEMO)
    fg.run(folder / "demo.toml", folder / "demo-output", until="pack")


SMALL_DEMO = """
[population]
typists = 60
supplement_sentences = 300
[unigrams]
devices_per_round = 20
rounds = 1
[words]
preset = "W_demo"
[words.pretraining]
epochs = 1
[words.training]
rounds = 1
devices_per_round = 8
dev_users = 4
[pieces]
use = false
[distillation]
samples = 300
infer_samples = 300
[budget]
max_ngrams = 5000
[refit]
devices_per_round = 20
sketch_bits = 12
grow = 0
[baselines]
pooled = false
"""


def hugging_face(folder: Path) -> None:
    """A model with random weights, whose tokenizer was trained on the text of the page."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    text = [" ".join(words) for words in SyntheticPopulation("en_us", seed=1).clean_sentences(400)]
    (folder / "book.txt").write_text("\n".join(text[:300]) + "\n")
    (folder / "test.txt").write_text("\n".join(text[300:]) + "\n")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(vocab_size=200, special_tokens=["<|end|>"]))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|end|>", eos_token="<|end|>")
    fast.save_pretrained(folder / "FOLDER")
    torch.manual_seed(3)
    shape = {"n_positions": 24, "n_embd": 16, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(vocab_size=len(fast), **shape)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder / "FOLDER")


READY: dict[str, Callable[[Path], None]] = {
    "docs/howto/hugging-face.md": hugging_face,
    "docs/ten-minutes.md": demo_output,
}

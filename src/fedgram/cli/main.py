"""The entry point `fedgram`: command groups, imported only when they are used, and errors as one line."""

import errno
import io
import os
import signal
import sys
from typing import Any

import click

from fedgram import __version__
from fedgram.cli.commands import LazyGroup
from fedgram.core.errors import FedgramError, MissingDependencyError
from fedgram.core.unpacking import VARIABLE, size_in_bytes

_COMMANDS = {
    "data": ("fedgram.cli.data", "group", "Import, generate and describe users and their text."),
    "ngram": ("fedgram.cli.ngram", "group", "Train, prune, merge, score and convert n-gram models."),
    "network": ("fedgram.cli.network", "group", "Train word pieces, pretrain and score networks."),
    "federated": ("fedgram.cli.federated", "group", "Collect, train and count on simulated devices."),
    "distill": ("fedgram.cli.distill", "group", "Turn a network into n-gram models."),
    "phone": ("fedgram.cli.phone", "group", "Pack, predict, export and measure models for phones."),
    "federation": ("fedgram.cli.federation", "group", "Run the federated stages on real devices, over Flower."),
    "privacy": ("fedgram.cli.privacy", "group", "Plan the noise of a run, and show what was spent."),
    "audit": ("fedgram.cli.audit", "group", "Attack models, to see what they show of single users."),
    "evaluate": ("fedgram.cli.evaluate", "command", "Measure how well models predict what held-out users type."),
    "run": ("fedgram.cli.run", "command", "Make a keyboard model from users' text, and report on it."),
    "demo": ("fedgram.cli.run", "demo", "Run everything on generated typists, in minutes."),
    "report": ("fedgram.cli.report", "command", "Write a run's results as a page."),
}
_MOVED = {
    "bench-device": "phone bench", "capitalize": "ngram capitalize", "export": "phone export",
    "keyboard": "phone keyboard", "pack": "phone pack", "pieces": "network pieces", "predict": "phone predict",
    "pretrain": "network pretrain", "refit": "federated refit", "score": "network score", "train": "federated train",
    "unigrams": "federated unigrams", "workflow": "distill workflow",
}  # fmt: skip


# Packages that many modules import at their top: what they are for, and the extra that brings them.
_EXTRAS = {"torch": ("networks", "neural"), "triton": ("training on a GPU", "neural")}


@click.group(
    cls=LazyGroup,
    places=_COMMANDS,
    moved=_MOVED,
    examples=["fedgram demo", "fedgram run --print-preset en_us"],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="fedgram")
@click.option("--max-unpacked", metavar="SIZE", help="What one compressed file may unpack to, such as 8G.")
def cli(max_unpacked: str | None) -> None:
    """Federated learning of n-gram language models for keyboards."""
    if max_unpacked is not None:
        size_in_bytes(max_unpacked)
        os.environ[VARIABLE] = max_unpacked


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. A user's error is one line on standard error and exit code 2."""
    signal.signal(signal.SIGTERM, _end)  # so that unfinished files are removed on the way out
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def _end(*_: object) -> None:
    sys.exit(143)


def run(arguments: list[str]) -> int:
    """Run the command line and return the exit code."""
    for stream in (sys.stdout, sys.stderr):  # a terminal without our letters gets question marks, not an error
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        result: Any = cli.main(args=list(arguments), prog_name="fedgram", standalone_mode=False, obj=arguments)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 2
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "fedgram"
        return _fail(f"{error.format_message().rstrip('.')}; see {command} --help")
    except click.ClickException as error:
        return _fail(error.format_message())
    except FedgramError as error:
        return _fail(str(error), error)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        return _fail(str(MissingDependencyError(*_EXTRAS[error.name])))
    except (KeyboardInterrupt, click.Abort):
        click.echo("fedgram: interrupted", err=True)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads on: no second complaint at exit
        return 141
    except OSError as error:
        return _fail(_describe(error), error)
    except MemoryError as error:
        return _fail("out of memory; use a smaller corpus, vocabulary or order", error)


def _describe(error: OSError) -> str:
    place = f"{error.filename}: " if error.filename else ""
    reason = (error.strerror or str(error)).lower()
    return place + reason + ("; free some space and try again" if error.errno == errno.ENOSPC else "")


def _fail(message: str, error: Exception | None = None) -> int:
    message = "; ".join([message, *getattr(error, "__notes__", ())])
    click.echo("fedgram: " + " ".join(message.split()), err=True)
    return 2

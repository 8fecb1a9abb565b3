"""The entry point `fedgram`: command groups, imported only when they are used, and errors as one line."""

import errno
import io
import os
import signal
import sys
from importlib import import_module
from typing import Any

import click

from fedgram import __version__
from fedgram.core.errors import FedgramError, MissingDependencyError

_GROUPS = {
    "bench-device": ("fedgram.cli.bench_device", "Measure the size and speed of an lm.fgram."),
    "capitalize": ("fedgram.cli.capitalize", "Restore capitals with a cased n-gram model."),
    "data": ("fedgram.cli.data", "Import, generate and describe populations of users."),
    "demo": ("fedgram.cli.demo", "Run everything on generated typists, in minutes."),
    "evaluate": ("fedgram.cli.evaluate", "Measure how well models predict what held-out users type."),
    "distill": ("fedgram.cli.distill", "Find the n-gram model closest to a source."),
    "export": ("fedgram.cli.export", "Write a model in the formats of other keyboards and recognisers."),
    "federation": ("fedgram.cli.federation", "Run the federated stages on devices of their own, over Flower."),
    "keyboard": ("fedgram.cli.keyboard", "Try an lm.fgram on a keyboard in the browser."),
    "ngram": ("fedgram.cli.ngram", "Train, prune, merge, approximate, score and convert n-gram models."),
    "pack": ("fedgram.cli.pack", "Write an n-gram model as an lm.fgram for phones and browsers."),
    "pretrain": ("fedgram.cli.pretrain", "Train a network on text that a server may see."),
    "score": ("fedgram.cli.score", "Measure how well a network predicts sentences."),
    "train": ("fedgram.cli.train", "Train a network on devices that keep their text."),
    "refit": ("fedgram.cli.refit", "Fit a distilled model to what devices count on their own text."),
    "pieces": ("fedgram.cli.pieces", "Train and inspect word pieces."),
    "report": ("fedgram.cli.report", "Write a run's results as a page."),
    "predict": ("fedgram.cli.predict", "Print the words that an lm.fgram expects next."),
    "run": ("fedgram.cli.run", "Make a keyboard model from users' text, and report on it."),
    "unigrams": ("fedgram.cli.unigrams", "Collect word frequencies from devices."),
    "workflow": ("fedgram.cli.workflow", "Run Algorithm 1: eight n-gram models from two sources."),
}


# Packages that many modules import at their top: what they are for, and the extra that brings them.
_EXTRAS = {"torch": ("networks", "neural"), "triton": ("training on a GPU", "neural")}


class LazyGroup(click.Group):
    """A group whose subgroups live in modules that are imported when one of their commands is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, without importing anything."""
        return sorted([*super().list_commands(ctx), *_GROUPS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, imported now."""
        if cmd_name in _GROUPS:
            module = import_module(_GROUPS[cmd_name][0])
            command: click.Command = getattr(module, "group", None) or module.command
            return command
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the groups with their one-line help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _GROUPS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="fedgram")
def cli() -> None:
    """Federated learning of n-gram language models for keyboards."""


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
    except MemoryError:
        return _fail("out of memory; use a smaller corpus, vocabulary or order")


def _describe(error: OSError) -> str:
    place = f"{error.filename}: " if error.filename else ""
    reason = (error.strerror or str(error)).lower()
    return place + reason + ("; free some space and try again" if error.errno == errno.ENOSPC else "")


def _fail(message: str, error: Exception | None = None) -> int:
    message = "; ".join([message, *getattr(error, "__notes__", ())])
    click.echo("fedgram: " + " ".join(message.split()), err=True)
    return 2

"""Commands and groups: examples at the end of every help text, and earlier names that still work."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click
from click.core import ParameterSource

from fedgram.core.errors import FedgramError
from fedgram.core.settings import Needs, without_effect


class _WithExamples(click.Command):
    """Examples at the end of the help text."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(" " * formatter.current_indent + example + "\n")


class Command(_WithExamples):
    """A command whose help ends with examples.

    Options that were renamed are accepted with a hint, and those that would have no effect are refused.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Replace earlier names of options by the present ones, and check that the given options have an effect."""
        present = {name for p in self.params for name in p.opts}
        renamed = {
            old: p.opts[0] for p in self.params if isinstance(p, Option) for old in p.formerly if old not in present
        }
        left = super().parse_args(ctx, [_renamed(argument, renamed) for argument in args])
        _refuse_idle(self.params, ctx)
        return left


class Group(_WithExamples, click.Group):
    """A group of such commands."""

    command_class = Command


Group.group_class = Group


class Option(click.Option):
    """An option that may have earlier names, such as `--client-lr`, and that may need another option.

    It is refused where the command has an option that it `needs` and the value will not do.
    """

    def __init__(
        self, *args: Any, formerly: tuple[str, ...] = (), needs: tuple[Needs, ...] = (), **attributes: Any
    ) -> None:
        super().__init__(*args, **attributes)
        self.formerly, self.needs = formerly, needs


class LazyGroup(Group):
    """A group whose commands live in modules that are imported when they are used.

    `places` maps names to (module, attribute, help). `moved` maps earlier names to the present ones.
    """

    def __init__(
        self,
        *args: Any,
        places: dict[str, tuple[str, str, str]],
        moved: dict[str, str] | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(*args, **attributes)
        self.places, self.moved = places, moved or {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names, in the order of the table; nothing is imported."""
        return list(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, imported now."""
        if cmd_name not in self.places:
            return super().get_command(ctx, cmd_name)
        module, attribute, _ = self.places[cmd_name]
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their one-line help; nothing is imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.places[name][2]) for name in self.list_commands(ctx)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command, by an earlier name if need be."""
        if args and args[0] in self.moved:
            hint(f"{ctx.command_path} {args[0]}", f"{ctx.command_path} {self.moved[args[0]]}")
            args = [*self.moved[args[0]].split(), *args[1:]]
        return super().resolve_command(ctx, args)


def hint(old: str, new: str) -> None:
    """Tell of a new name."""
    click.echo(f"fedgram: `{old}` is now `{new}`; the old name works in this version only", err=True)


def _refuse_idle(parameters: Sequence[click.Parameter], ctx: click.Context) -> None:
    """Refuse options of the command line that have no effect without another one."""
    flags = {p.opts[0].lstrip("-").replace("-", "_"): p for p in parameters if isinstance(p, Option)}
    given = {
        p.opts[0]: p.needs
        for p in flags.values()
        if ctx.get_parameter_source(str(p.name)) == ParameterSource.COMMANDLINE
    }
    if idle := without_effect(given, {name: (ctx.params.get(str(p.name)), p.default) for name, p in flags.items()}):
        options, needed = idle
        wanted = f"--{needed.name.replace('_', '-')} {' or '.join(needed.values)}".rstrip()
        listed = " and ".join((", ".join(options[:-1]), options[-1])) if len(options) > 1 else options[0]
        raise FedgramError(f"{listed} need{'s' * (len(options) == 1)} {wanted}; without it {needed.otherwise}")


def _renamed(argument: str, renamed: dict[str, str]) -> str:
    flag, sign, value = argument.partition("=")
    if flag not in renamed:
        return argument
    hint(flag, renamed[flag])
    return renamed[flag] + sign + value

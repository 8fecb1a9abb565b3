"""Commands and groups: examples at the end of every help text, and earlier names that still work."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click


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
    """A command whose help ends with examples; options that were renamed are accepted with a hint."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Replace earlier names of options by the present ones."""
        present = {name for p in self.params for name in p.opts}
        renamed = {
            old: p.opts[0] for p in self.params if isinstance(p, Option) for old in p.formerly if old not in present
        }
        return super().parse_args(ctx, [_renamed(argument, renamed) for argument in args])


class Group(_WithExamples, click.Group):
    """A group of such commands."""

    command_class = Command


Group.group_class = Group


class Option(click.Option):
    """An option that may have earlier names, such as `--client-lr`."""

    def __init__(self, *args: Any, formerly: tuple[str, ...] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.formerly = formerly


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


def _renamed(argument: str, renamed: dict[str, str]) -> str:
    flag, sign, value = argument.partition("=")
    if flag not in renamed:
        return argument
    hint(flag, renamed[flag])
    return renamed[flag] + sign + value

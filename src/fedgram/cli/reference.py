"""The page of all commands, written from the commands themselves."""

import click

from fedgram.cli.main import cli

_HEADING = "# All commands\n\nAs `--help` prints them; written by `scripts/docs`.\n"


def command_reference() -> str:
    """Every command's help, in Markdown."""
    root = click.Context(cli, info_name="fedgram", terminal_width=100, help_option_names=["-h", "--help"])
    return _HEADING + "".join(_sections(cli, root))


def _sections(command: click.Command, ctx: click.Context) -> list[str]:
    parts = [f"\n## {ctx.command_path}\n\n```\n{command.get_help(ctx)}\n```\n"]
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            child = command.get_command(ctx, name)
            if child:
                parts += _sections(child, click.Context(child, info_name=name, parent=ctx, terminal_width=100))
    return parts


if __name__ == "__main__":
    click.echo(command_reference(), nl=False)

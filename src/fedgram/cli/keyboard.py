"""`fedgram keyboard`: a phone-like keyboard in the browser, to try a packed model on."""

import click

from fedgram.core.errors import FedgramError, MissingDependencyError
from fedgram.keyboard.web.app import make_app


@click.command("keyboard")
@click.argument("model")
@click.option("--compare", help="Another lm.fgram, shown beside it.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0: any free one.")
def command(model: str, compare: str | None, host: str, port: int) -> None:
    """Serve a page to type with MODEL, an lm.fgram, until interrupted.

    The page taps, glides and suggests by itself and works offline once loaded; no text leaves it.
    """
    try:
        import uvicorn
    except ImportError:
        raise MissingDependencyError("the web keyboard", "keyboard") from None
    app = make_app([model, *([compare] if compare else [])])
    config = uvicorn.Config(app, host=host, port=port, log_level="critical", access_log=False)
    try:
        listening = config.bind_socket()
    except SystemExit:
        raise FedgramError(f"cannot listen on {host}:{port}; choose others with --host and --port") from None
    click.echo(f"http://{host}:{listening.getsockname()[1]}/  (stop with Ctrl-C)", err=True)
    uvicorn.Server(config).run(sockets=[listening])

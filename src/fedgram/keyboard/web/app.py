"""The server of the web keyboard: it serves a few static files and the models, and receives nothing.

The page does all the work. Its Content-Security-Policy allows it to load from its own origin only, so that no text can
leave it. Requests that name another host are refused: else any web site could have its name lead to this server (DNS
rebinding) and read the models as pages of its own.
"""

import ipaddress
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedgram.core.errors import FedgramError, MissingDependencyError
from fedgram.fgram.reader import open_model

MAX_LANGUAGES = 3
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html; charset=utf-8", ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",
    "Fedgram-Keyboard": "1",  # by this, worker.js knows our answers
}


def names_of(paths: Sequence[Path]) -> list[str]:
    """The names of files, with as many of their parent folders as are needed to make them distinct.

    >>> names_of([Path("a/en/lm.fgram"), Path("b/en/lm.fgram")])
    ['a/en/lm.fgram', 'b/en/lm.fgram']
    """
    parts = [path.absolute().parts for path in paths]
    for count in range(1, max(map(len, parts)) + 1):
        names = [Path(*part[-count:]).as_posix() for part in parts]
        if len(set(names)) == len(names):
            return names
    return [path.name for path in paths]


def is_own_host(header: str, name: str) -> bool:
    """Whether a Host header names this server: by a number, as localhost, or by the name that it listens on.

    >>> [is_own_host(h, "pc.lan") for h in ("127.0.0.1:8000", "[::1]", "localhost:1", "PC.lan:80", "evil.example:8000")]
    [True, True, True, True, False]
    """
    host = header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() else header
    if host.lower() in ("localhost", name.lower()):
        return True
    try:
        ipaddress.ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    except ValueError:
        return False
    return True


def _only_for(app: Any, name: str) -> Any:
    """The application, which refuses requests to another host than this one."""
    from starlette.responses import PlainTextResponse

    refusal = "this is not the host that you asked for; open the page by the address that fedgram printed\n"

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        hosts = [value.decode("latin-1") for key, value in scope.get("headers", []) if key == b"host"]
        if scope["type"] == "http" and not (len(hosts) == 1 and is_own_host(hosts[0], name)):
            await PlainTextResponse(refusal, status_code=421, headers=HEADERS)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return guarded


def make_app(models: Sequence[str | Path], host: str = "localhost", compare: str | Path | None = None) -> Any:
    """The application that serves the page and the packed models, which are opened here to check them.

    Args:
        models: The `.fgram` files of one keyboard, one per language.
        host: The name by which the page is opened, besides `localhost` and addresses in numbers.
        compare: The model of a second keyboard, shown beside the first.
    """
    try:
        from starlette.applications import Starlette
        from starlette.requests import Request
        from starlette.responses import FileResponse, JSONResponse, Response
        from starlette.routing import Route
    except ImportError:
        raise MissingDependencyError("the web keyboard", "keyboard") from None
    if not 1 <= len(models) <= MAX_LANGUAGES:
        raise FedgramError(f"a keyboard takes one model per language, at most {MAX_LANGUAGES}, not {len(models)}")
    paths = [open_model(path).path for path in (*models, *([compare] if compare else []))]
    listed = [
        {"name": name, "url": f"models/{i}.fgram", "bytes": path.stat().st_size, "keyboard": int(i >= len(models))}
        for i, (name, path) in enumerate(zip(names_of(paths), paths, strict=True))
    ]

    folder = files("fedgram.keyboard.web") / "static"
    assets = {file.name for file in folder.iterdir()} - {"index.html", "worker.js"}

    def static(name: str) -> Response:
        content = (folder / name).read_bytes()
        return Response(content, headers=HEADERS, media_type=_TYPES[Path(name).suffix])

    async def index(_: Request) -> Response:
        return static("index.html")

    async def worker(_: Request) -> Response:
        return static("worker.js")

    async def asset(request: Request) -> Response:
        name = request.path_params["name"]
        return static(name) if name in assets else Response(status_code=404, headers=HEADERS)

    async def model_list(_: Request) -> Response:
        return JSONResponse(listed, headers=HEADERS)

    async def model(request: Request) -> Response:
        number = request.path_params["number"]
        if number >= len(paths):
            return Response(status_code=404, headers=HEADERS)
        return FileResponse(paths[number], headers=HEADERS, media_type="application/octet-stream")

    routes = [
        Route("/", index), Route("/worker.js", worker), Route("/static/{name}", asset),
        Route("/models.json", model_list), Route("/models/{number:int}.fgram", model),
    ]  # fmt: skip
    return _only_for(Starlette(routes=routes), host)

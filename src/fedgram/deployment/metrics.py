"""Metrics of a server for Prometheus, in its text format, from the status file that rounds update."""

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_PLAIN = {
    "round": ("gauge", "Number of the current round."),
    "rounds": ("gauge", "Number of rounds of the current task."),
    "devices": ("gauge", "Devices that could be invited when the round began."),
    "rounds_committed": ("counter", "Rounds whose sum was applied."),
    "rounds_abandoned": ("counter", "Rounds that were abandoned because of too few reports."),
    "round_seconds": ("counter", "Time spent on committed rounds."),
}
_TOTALS = {
    "invited": "Devices that were invited.",
    "reports": "Reports that were added to a sum.",
    "late": "Devices that did not answer by the deadline.",
    "bytes_sent": "Bytes handed to Flower for devices.",
    "bytes_received": "Bytes of devices' replies.",
}
_BY_REASON = {"failed": "Devices that failed or declined.", "refused": "Reports that were refused."}


def metrics_text(status: Mapping[str, Any], nodes: Mapping[str, int] | None = None) -> str:
    """The status in Prometheus's text format."""
    lines: list[str] = []

    def put(name: str, kind: str, about: str, values: Mapping[str, float]) -> None:
        lines.extend([f"# HELP fedgram_{name} {about}", f"# TYPE fedgram_{name} {kind}"])
        lines.extend(f"fedgram_{name}{labels} {value:.15g}" for labels, value in values.items())

    for name, (kind, about) in _PLAIN.items():
        put(name + ("_total" if kind == "counter" else ""), kind, about, {"": status.get(name, 0)})
    totals = status.get("totals", {})
    for name, about in _TOTALS.items():
        put(f"{name}_total", "counter", about, {"": totals.get(name, 0)})
    for name, about in _BY_REASON.items():
        put(
            f"{name}_total", "counter", about, {f'{{reason="{_label(r)}"}}': n for r, n in totals.get(name, {}).items()}
        )
    if nodes is not None:
        put("nodes", "gauge", "Registered nodes by status.", {f'{{status="{_label(s)}"}}': n for s, n in nodes.items()})
    return "\n".join(lines) + "\n"


def _label(text: str) -> str:
    return "".join(c for c in str(text) if c.isalnum() or c in " -_")[:40]


def serve_metrics(port: int, text: Callable[[], str], *, host: str = "127.0.0.1") -> ThreadingHTTPServer:
    """Serve `/metrics` on a port of this machine, in a thread, until the returned server is shut down."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.split("?")[0] == "/metrics"
            body = text().encode() if found else b"see /metrics\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer((host, port), Handler)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server

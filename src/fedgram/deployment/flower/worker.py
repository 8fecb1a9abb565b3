"""The process that computes on a device: it loads the libraries once, and forks for every message.

Flower starts a new Python process for each message, which spends seconds of processor time on loading the same
libraries again. Here they are loaded while the device is idle, and a message costs a fork. The child runs Flower's own
`run_clientapp`, in a process that ends with the message, as Flower's would.
"""

import os
import signal
import sys
import time

from fedgram.core.parent import end_with
from fedgram.deployment.flower import internals

_POLL_SECONDS, _CHILD_POLL_SECONDS = 0.2, 0.02


def main() -> None:
    """Answer the messages of the SuperNode at an address until it ends: worker ADDRESS PARENT < TOKEN."""
    address, parent, token = sys.argv[1], int(sys.argv[2]), sys.stdin.read()
    _load()
    tasks = internals.ClientTasks(address, token)
    while os.getppid() == parent:
        try:
            task = tasks.next()
        except Exception:  # the SuperNode is starting, or ending
            task = ""
        if task:
            _run(address, task, parent)
        else:
            time.sleep(_POLL_SECONDS)


def _run(address: str, token: str, parent: int) -> None:
    """Answer one message in a child process, which is killed when the SuperNode ends."""
    own = os.getpid()
    child = os.fork()
    if child:
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if os.getppid() != parent:
                os.kill(child, signal.SIGKILL)
            time.sleep(_CHILD_POLL_SECONDS)
        return
    end_with(own)
    code = 1
    try:
        internals.run_client_app(address, token)
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _load() -> None:
    """Load what messages need; a device without torch can still count words."""
    import fedgram.deployment.flower.client_app
    import fedgram.distill.refit.clipped_ngrams
    import fedgram.distill.refit.pair_sketch
    import fedgram.federated.unigram_collection

    try:
        import fedgram.training.fedavg_task  # noqa: F401
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise


if __name__ == "__main__":
    main()

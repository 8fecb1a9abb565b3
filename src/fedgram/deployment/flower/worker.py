"""The process that computes on a device: it loads what it needs once, and forks for every message.

Flower starts a fresh Python for each message, which takes seconds of processor time to load the same libraries again.
Here they are loaded while the device is idle; a message then costs a fork. The child is Flower's own `run_clientapp`,
in a process that ends with the message, as before.
"""

import os
import signal
import sys
import time

from fedgram.core.parent import end_with

_POLL = 0.2


def main() -> None:
    """Serve the SuperNode at an address until it ends: worker ADDRESS PARENT."""
    address, parent = sys.argv[1], int(sys.argv[2])
    _load()
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    client = RuntimeHttpClient.from_server_address(
        address, True, None, [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
    )
    request = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
    while os.getppid() == parent:
        try:
            found = client.AcquireTask(request)
        except Exception:  # the SuperNode is starting, or ending
            time.sleep(_POLL)
            continue
        if found.HasField("task") and found.token:
            _run(address, found.token, parent)
        else:
            time.sleep(_POLL)


def _run(address: str, token: str, parent: int) -> None:
    """Handle one message in a process of its own, one at a time; it ends with the SuperNode."""
    child = os.fork()
    if child:
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if os.getppid() != parent:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.02)
        return
    end_with(os.getppid())
    code = 1
    try:
        from flwr.supernode.runtime.run_clientapp import run_clientapp

        run_clientapp(address, token, insecure=True, parent_pid=os.getppid())
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _load() -> None:
    """Load what messages need; a device without torch can still count words."""
    import fedgram.deployment.flower.client_app
    import fedgram.distill.refit.ngram_collection
    import fedgram.distill.refit.pair_sketch
    import fedgram.federated.unigram_collection

    try:
        import fedgram.training.fedavg_task  # noqa: F401
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise


if __name__ == "__main__":
    main()

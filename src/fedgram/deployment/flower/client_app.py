"""The ClientApp: passes Flower's messages to the device (`device.py`), and its answers back."""

import sys
import traceback
from collections.abc import Callable
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedgram.deployment.device import Device, open_device
from fedgram.deployment.flower.grid_transport import from_records, to_records
from fedgram.federated.secure.settings import MAJORITY, VALUE_BITS

app = ClientApp()


def _device(context: Context) -> Device:
    config = context.node_config
    return open_device(
        str(config["data"]), str(config["jobs"]), min_messages=int(config.get("min-messages", 1)),
        hooks=str(config.get("hooks", "")), masked_with=int(config.get("masked-with", 0)),
        participations=int(config.get("participations", 1)), pins=str(config.get("pins", "")),
        release_key=str(config.get("release-key", "")), dev_share=float(config.get("dev-share", 0.0)),
        test_share=float(config.get("test-share", 0.0)), neighbours=int(config.get("neighbours", 0)),
        majority=float(config.get("majority", MAJORITY)), value_bits=int(config.get("value-bits", VALUE_BITS)),
    )  # fmt: skip


def _answer(message: Message, context: Context, act: Callable[[Device, dict[str, bytes]], Any]) -> Message:
    """Answer a message; if an error occurs, the server is told the name of its class and nothing else.

    The device's own log also says where it occurred, but not its message, which might quote text.
    """
    try:
        content = act(_device(context), from_records(message.content))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        print(f"fedgram: {type(error).__name__} at {place.filename}:{place.lineno}", file=sys.stderr, flush=True)
        content = {"failed": type(error).__name__.encode()}
    return Message(to_records(content), reply_to=message)


@app.query("join")
def join(message: Message, context: Context) -> Message:
    """Accept a job, and say which device this is."""
    return _answer(message, context, Device.join)


@app.query("release")
def release(message: Message, context: Context) -> Message:
    """Accept a release of a model, and a piece of it."""
    return _answer(message, context, Device.release)


@app.train("secure")
def secure(message: Message, context: Context) -> Message:
    """Take the next step of a masked round."""
    return _answer(message, context, Device.secure)


@app.train("report")
def report(message: Message, context: Context) -> Message:
    """Compute and send an update."""
    return _answer(message, context, Device.report)

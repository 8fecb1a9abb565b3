"""Who takes part in a stage that asks devices: the train users of the run, or the devices of a federation."""

from collections.abc import Callable

from fedgram.federated.devices import Devices
from fedgram.pipeline.workspace import Work
from fedgram.text.population import Users, open_population

DevicesOf = Callable[[Work], Users | Devices]


def simulated(work: Work) -> Users:
    """The train users of the stage's population, as simulated devices."""
    return open_population(work.read("users.population")).train

"""A custom federated task: the mean length of messages, from two clipped sums per device.

Run it with `python examples/message_length.py`. The devices of a federation find the task by its name if the package
that contains it is installed there and declares in its pyproject.toml:

    [project.entry-points."fedgram.tasks"]
    message-length = "message_length:MessageLength"
"""

from collections.abc import Sequence

import numpy as np

import fedgram as fg
from fedgram.core.arrays import IntArray
from fedgram.core.random import Stream
from fedgram.core.storage import Record
from fedgram.federated.counting import CountingTask
from fedgram.federated.task import Update
from fedgram.federated.validation import NormLimit, UpdateBounds
from fedgram.text.population import ClientDataset, population_from_messages
from fedgram.text.synthetic.typists import SyntheticPopulation

LONGEST = 50  # maximum number of words counted per message


class MessageLength(CountingTask):
    """Counts words and messages, in at most `most` messages per device."""

    name, size = "message-length", {"words": 1, "messages": 1}

    def __init__(self, most: int) -> None:
        self.most = most
        limits = NormLimit(("messages",), most, order=1), NormLimit(("words",), LONGEST * most, order=1)
        self.bounds = UpdateBounds(weight=1.0, norms=limits, non_negative=("words", "messages"))

    def settings(self) -> Record:
        return Record({"most": self.most})

    @classmethod
    def from_settings(cls, settings: Record) -> "MessageLength":
        return cls(int(settings.fields["most"]))

    def encode(self, words: Sequence[str]) -> IntArray:
        return np.ones(len(words), np.int32)  # the words themselves do not matter

    def client_update(self, broadcast: Record, data: ClientDataset, rng: Stream) -> Update:  # noqa: ARG002
        lengths = np.minimum(np.diff(data.sentences.offsets)[: self.most], LONGEST)
        return Update.dense({"words": np.array([lengths.sum()], float), "messages": np.array([len(lengths)], float)}, 1)


if __name__ == "__main__":
    people = population_from_messages(SyntheticPopulation("en_us", seed=1).rows(40))
    run = fg.run_task(MessageLength(most=100), people.users(), devices_per_round=10, seed=7)
    words, messages = (int(run.state[name][0]) for name in ("words", "messages"))
    print(f"{words / messages:.2f} words per message, of {run.progress.tally.reports} devices")

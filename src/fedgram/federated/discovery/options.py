"""The settings of vocabulary discovery."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fedgram.core.errors import FedgramError
from fedgram.core.settings import Between, Positive, setting
from fedgram.federated.cohort import CohortOptions
from fedgram.federated.discovery.prefix_level import MAX_CANDIDATES, MAX_WORDS_PER_DEVICE


@dataclass(frozen=True, slots=True)
class DiscoveryOptions(CohortOptions):
    """How words outside the whitelist are discovered."""

    method: Literal["tree", "triehh"] = setting(
        "tree", "tree adds Gaussian noise to a prefix tree; triehh is the published baseline."
    )
    epsilon: Positive = setting(4.0, "ε of the whole collection, per user.")
    delta: Annotated[float, Between(above=0, high=0.5)] = setting(1e-10, "δ of the whole collection, per user.")
    levels: Annotated[int, Between(2, 50)] = setting(
        10, "Levels of the prefix tree; more levels find longer words and need more noise."
    )
    words_per_device: Annotated[int, Between(1, MAX_WORDS_PER_DEVICE)] = setting(
        1, "Words that a device contributes, chosen at random by how often they were typed."
    )
    min_holders: Annotated[int, Between(2)] = setting(
        10, "Minimum number of holders of a word, even if the noise would allow fewer (tree)."
    )
    max_candidates: Annotated[int, Between(1024, MAX_CANDIDATES)] = setting(
        1 << 18, "Maximum length of the vector that a device sends at a level."
    )

    def __post_init__(self) -> None:
        super(DiscoveryOptions, self).__post_init__()
        if self.method == "triehh" and self.words_per_device > 1:
            raise FedgramError("TrieHH takes one word per device; use --words-per-device 1, or --method tree")

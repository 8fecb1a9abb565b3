"""What a run is told: one frozen dataclass a section, with the paper's settings as defaults.

Every stage gets its own section, so that a change in one leaves the others' results standing. Relative paths are taken
from the folder of the configuration. `strict_toml` reads it.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from fedgram.core.errors import InputError, InvariantError
from fedgram.pipeline.strict_toml import Between, digest, read_config

Split = Literal["train", "dev", "test"]
Language = Literal["en_us", "pt_br"]
Smoothing = Literal["katz", "witten-bell", "absolute", "kneser-ney", "modified-kneser-ney"]
AtLeastOne = Annotated[int, Between(1)]


@dataclass(frozen=True, slots=True)
class PopulationConfig:
    """Where users' text comes from: files, or if `users` is not given, typists generated from the seed."""

    users: str | None = None
    supplement: str | None = None
    whitelist: str | None = None
    language: Language = "en_us"
    typists: AtLeastOne = 1500
    supplement_sentences: AtLeastOne = 40_000

    def __post_init__(self) -> None:
        given = [self.users, self.supplement, self.whitelist]
        if any(given) and not all(given):
            raise InvariantError("give users, supplement and whitelist, or none of them to generate all three")


@dataclass(frozen=True, slots=True)
class UnigramsConfig:
    """Federated collection of word counts (§3.1); `clip` is λ."""

    clip: Annotated[float, Between(above=0)] = 1000.0
    devices_per_round: AtLeastOne = 500
    rounds: AtLeastOne = 300
    over_selection: Annotated[float, Between(1)] = 1.3
    dropout: Annotated[float, Between(0, 0.99)] = 0.1


@dataclass(frozen=True, slots=True)
class PiecesConfig:
    """The word-piece inventory (§6)."""

    size: Annotated[int, Between(10, 100_000)] = 4000


@dataclass(frozen=True, slots=True)
class ExternalConfig:
    """A_W, the cased n-gram model of the supplement (§7.2)."""

    order: Annotated[int, Between(1, 7)] = 3
    smoothing: Smoothing = "modified-kneser-ney"
    higher_order_words: AtLeastOne = 64_000
    min_count: Annotated[tuple[int, ...], Between(1)] = (1,)
    max_ngrams: AtLeastOne = 1_500_000

    def __post_init__(self) -> None:
        if len(self.min_count) > self.order:
            raise InvariantError(f"min_count names {len(self.min_count)} orders, but the model has {self.order}")


@dataclass(frozen=True, slots=True)
class EvaluationConfig:
    """Who the models are tried on, and how (§7.2)."""

    split: Split = "test"
    cased: bool = False
    buckets: Annotated[int, Between(2)] = 20
    experiment: bool = True


@dataclass(frozen=True, slots=True)
class RunConfig:
    """A whole run."""

    seed: Annotated[int, Between(0)] = 0
    population: PopulationConfig = field(default_factory=PopulationConfig)
    unigrams: UnigramsConfig = field(default_factory=UnigramsConfig)
    pieces: PiecesConfig = field(default_factory=PiecesConfig)
    external: ExternalConfig = field(default_factory=ExternalConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    @property
    def digest(self) -> str:
        """SHA-256 of all values."""
        return digest(self)


def read_run_config(path: str | Path) -> RunConfig:
    """Read a run's configuration; files that it names must exist."""
    config = read_config(path, RunConfig)
    folder = Path(path).parent

    def found(name: str, value: str | None) -> str | None:
        if value is not None and not (folder / value).is_file():
            raise InputError(path, f"population.{name} names a file that is not there: {folder / value}")
        return None if value is None else str(folder / value)

    p = config.population
    users, supplement = found("users", p.users), found("supplement", p.supplement)
    files = replace(p, users=users, supplement=supplement, whitelist=found("whitelist", p.whitelist))
    return replace(config, population=files)

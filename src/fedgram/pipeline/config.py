"""What a run is told: one frozen dataclass a section, with the paper's settings as defaults.

Every stage gets its own sections, so that a change in one leaves the others' results standing. Relative paths are taken
from the folder of the configuration. `strict_toml` reads it; `presets/` holds those that come with the program.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

from fedgram.core.errors import FedgramError, InputError, InvariantError
from fedgram.pipeline.strict_toml import Between, digest, read_config

Split = Literal["train", "dev", "test"]
Language = Literal["en_us", "pt_br"]
Smoothing = Literal["katz", "witten-bell", "absolute", "kneser-ney", "modified-kneser-ney"]
Rule = Literal["nesterov", "momentum", "adam"]
Schedule = Literal["constant", "linear", "cosine"]
Export = Literal["arpa", "openfst", "g.fst", "aosp-combined", "aosp-dict", "onboard", "presage"]
WordsPreset = Literal["W_30K", "W_demo"]
PiecesPreset = Literal["P_4K-S", "P_4K-L", "P_4K-G", "P_16K-S", "P_16K-L", "P_30K", "P_demo"]
AtLeastOne = Annotated[int, Between(1)]
Positive = Annotated[float, Between(above=0)]
OverSelection = Annotated[float, Between(1, 1000)]
PRESETS = ("demo", "en_us", "pt_br")


@dataclass(frozen=True, slots=True)
class PopulationConfig:
    """Where users' text comes from: files, or if `users` is not given, typists generated from the seed.

    `supplement` is text that the server may see, `whitelist` the words that devices may report, in lower case.
    A generated supplement speaks of this part of the users' topics, `supplement_topics`.
    """

    users: str | None = None
    supplement: str | None = None
    whitelist: str | None = None
    language: Language = "en_us"
    typists: AtLeastOne = 1500
    supplement_sentences: AtLeastOne = 40_000
    supplement_topics: Annotated[float, Between(0.05, 1)] = 1.0

    def __post_init__(self) -> None:
        given = [self.users, self.supplement, self.whitelist]
        if any(given) and not all(given):
            raise InvariantError("give users, supplement and whitelist, or none of them to generate all three")


@dataclass(frozen=True, slots=True)
class UnigramsConfig:
    """Federated collection of word counts (§3.1); `clip` is λ. `counts` names ones that were collected elsewhere.

    `participations` is how many rounds one simulated device may take part in; with 0, any number, few users stand for
    many. Devices of a federation take part once.
    """

    counts: str | None = None
    clip: Annotated[float, Between(above=0, infinite=True)] = 1000.0
    devices_per_round: AtLeastOne = 500
    rounds: AtLeastOne = 300
    participations: Annotated[int, Between(0)] = 1
    over_selection: OverSelection = 1.3
    dropout: Annotated[float, Between(0, 0.99)] = 0.1


@dataclass(frozen=True, slots=True)
class WordsConfig:
    """R_W, the network of words (Table 2); `network` names one that was trained elsewhere."""

    preset: WordsPreset = "W_30K"
    network: str | None = None


@dataclass(frozen=True, slots=True)
class PiecesConfig:
    """The word pieces (§6), and R_P, their network; `model` and `network` name ones that were made elsewhere."""

    use: bool = True
    size: Annotated[int, Between(10, 100_000)] = 4000
    model: str | None = None
    preset: PiecesPreset = "P_4K-L"
    network: str | None = None


@dataclass(frozen=True, slots=True)
class PretrainingConfig:
    """The networks' warm start from the supplement; without epochs they start from random weights."""

    epochs: Annotated[int, Between(0)] = 3
    learning_rate: Positive = 3e-3
    rows: AtLeastOne = 128


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """FederatedAveraging of both networks (§7.1)."""

    rounds: AtLeastOne = 1000
    clients_per_round: AtLeastOne = 500
    over_selection: OverSelection = 1.3
    dropout: Annotated[float, Between(0, 0.99)] = 0.1
    client_rate: Positive = 0.5
    client_schedule: Schedule = "constant"
    rows: AtLeastOne = 6
    length: Annotated[int, Between(2)] = 21
    epochs: AtLeastOne = 1
    max_sentences: AtLeastOne = 64
    weighting: Literal["sentences", "uniform"] = "sentences"
    update_norm: Annotated[float, Between(above=0, infinite=True)] = 1.0
    server_rule: Rule = "nesterov"
    server_rate: Positive = 1.0
    server_momentum: Annotated[float, Between(0, 0.999)] = 0.9
    server_schedule: Schedule = "constant"
    dev_users: AtLeastOne = 100
    evaluate_every: AtLeastOne = 10
    patience: AtLeastOne | None = None


@dataclass(frozen=True, slots=True)
class ExternalConfig:
    """A_W, the cased n-gram model of the supplement (§7.2)."""

    order: Annotated[int, Between(1, 7)] = 3
    smoothing: Smoothing = "modified-kneser-ney"
    higher_order_words: AtLeastOne = 64_000
    min_count: Annotated[tuple[int, ...], Between(1)] = (1,)

    def __post_init__(self) -> None:
        if len(self.min_count) > self.order:
            raise InvariantError(f"min_count names {len(self.min_count)} orders, but the model has {self.order}")


@dataclass(frozen=True, slots=True)
class BudgetConfig:
    """How large every n-gram model may be, baselines included."""

    ngrams: AtLeastOne = 1_500_000
    words: AtLeastOne = 200_000


@dataclass(frozen=True, slots=True)
class DistillationConfig:
    """Algorithm 1: samples that are counted, and that a topology is inferred from; the longest inferred n-gram.

    With `uncased_first` R_W is counted without capitals, which the n-gram models get afterwards, as by word pieces:
    from `capital_samples` samples of the uncased n-gram model, or if that is not set, as many as of the network.
    """

    samples: AtLeastOne = 1_000_000
    infer_samples: AtLeastOne = 1_000_000
    order: Annotated[int, Between(1, 7)] = 4
    uncased_first: bool = False
    capital_samples: AtLeastOne | None = None


@dataclass(frozen=True, slots=True)
class RefitConfig:
    """The federated refit (beyond the paper): how devices count n-grams, and how the counts are joined with A_W_r.

    A device counts at most `clip` words in a pass, at most `ngram_clip` at one n-gram. `pairs` looks for pairs of words
    that `least` devices have, by a sketch of 2^`sketch_bits` cells per table; `grow` passes for longer n-grams, of at
    most `order` words. `prior` is β.
    """

    run: bool = True
    clip: Annotated[float, Between(1, infinite=True)] = 20_000.0
    ngram_clip: Annotated[float, Between(1, infinite=True)] = float("inf")
    devices_per_round: AtLeastOne = 500
    over_selection: OverSelection = 1.3
    dropout: Annotated[float, Between(0, 0.99)] = 0.1
    pairs: bool = True
    sketch_bits: Annotated[int, Between(4, 28)] = 22
    grow: Annotated[int, Between(0, 9)] = 2
    order: Annotated[int, Between(1, 7)] = 4
    least: AtLeastOne = 2
    prior: Positive = 3.0


@dataclass(frozen=True, slots=True)
class FinalConfig:
    """The model for the keyboard: the best on dev users, whose capitals may count; how it is packed and exported."""

    cased: bool = False
    bits: Annotated[int, Between(4, 12)] = 8
    exports: tuple[Export, ...] = ("arpa",)


@dataclass(frozen=True, slots=True)
class BaselinesConfig:
    """Models to compare with: of the supplement, and if `pooled`, of all train users' text, and the two interpolated.

    `shares` are the supplement's weights in the interpolation, of which the best on dev users is taken.
    """

    order: Annotated[int, Between(1, 7)] = 4
    smoothing: Smoothing = "modified-kneser-ney"
    pooled: bool = True
    shares: Annotated[tuple[float, ...], Between(0, 1)] = (0.1, 0.2, 0.3, 0.5)


@dataclass(frozen=True, slots=True)
class EvaluationConfig:
    """Who the models are tried on, and how (§7.2)."""

    split: Split = "test"
    buckets: Annotated[int, Between(2)] = 20
    experiment: bool = True
    networks: bool = True


@dataclass(frozen=True, slots=True)
class ClippingConfig:
    """Table 1: the baseline with federated unigrams, by clipping threshold λ."""

    run: bool = True
    thresholds: Annotated[tuple[float, ...], Between(above=0, infinite=True)] = (1.0, 1000.0, 5000.0)


@dataclass(frozen=True, slots=True)
class RunConfig:
    """A whole run."""

    seed: Annotated[int, Between(0)] = 0
    title: str = "From users' text to a keyboard model"
    population: PopulationConfig = field(default_factory=PopulationConfig)
    unigrams: UnigramsConfig = field(default_factory=UnigramsConfig)
    words: WordsConfig = field(default_factory=WordsConfig)
    pieces: PiecesConfig = field(default_factory=PiecesConfig)
    pretraining: PretrainingConfig = field(default_factory=PretrainingConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    external: ExternalConfig = field(default_factory=ExternalConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    distillation: DistillationConfig = field(default_factory=DistillationConfig)
    refit: RefitConfig = field(default_factory=RefitConfig)
    final: FinalConfig = field(default_factory=FinalConfig)
    baselines: BaselinesConfig = field(default_factory=BaselinesConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    clipping: ClippingConfig = field(default_factory=ClippingConfig)

    @property
    def digest(self) -> str:
        """SHA-256 of all values."""
        return digest(self)

    def files(self) -> Iterator[tuple[str, str, str]]:
        """The files that are named: section, key and path."""
        for section, key in _FILES:
            path = getattr(getattr(self, section), key)
            if path is not None:
                yield section, key, path

    def with_files(self, paths: dict[tuple[str, str], str]) -> "RunConfig":
        """The same with other paths, by section and key."""
        sections = {section for section, _ in paths}
        changed = {
            section: replace(getattr(self, section), **{key: path for (s, key), path in paths.items() if s == section})
            for section in sections
        }
        return replace(self, **changed)


_FILES = (
    ("population", "users"), ("population", "supplement"), ("population", "whitelist"),
    ("unigrams", "counts"), ("words", "network"), ("pieces", "model"), ("pieces", "network"),
)  # fmt: skip


def preset_path(name: str) -> Path:
    """The file of a preset."""
    if name not in PRESETS:
        raise FedgramError(f"there is no preset {name!r}; presets are {', '.join(PRESETS)}")
    return Path(str(files("fedgram.pipeline") / "presets" / f"{name}.toml"))


def read_run_config(source: str | Path, given: dict[tuple[str, str], str] | None = None) -> RunConfig:
    """Read a run's configuration, or a preset by its name; files that it names must exist.

    `given` are paths that take the place of the configuration's own. A preset's paths are taken from where one is.
    """
    preset = str(source) in PRESETS and not Path(source).exists()
    path = preset_path(str(source)) if preset else Path(source)
    folder = Path() if preset else path.parent
    config = read_config(path, RunConfig)
    found: dict[tuple[str, str], str] = {}
    for section, key, value in config.files():
        found[section, key] = str(folder / value)
    found |= given or {}
    for (section, key), value in found.items():
        if not Path(value).is_file():
            remedy = f"give it with --{key}" if preset and section == "population" else None
            problem = f"{section}.{key} names a file that is not there: {value}"
            raise InputError(source, problem, remedy=remedy)
    try:
        return config.with_files(found)
    except InvariantError as error:
        raise InputError(source, f"population: {error}") from None

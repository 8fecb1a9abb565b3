"""A run's configuration: one section per operation, with the paper's settings as defaults.

A section is the options of an operation, as its command and its function take them; sections of this module add what
only a run needs. Every stage depends on its own sections, so that a change in one leaves the results of other stages
valid. Relative paths are relative to the folder of the configuration. `presets/` has the presets.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.resources import files
from math import inf, isinf
from pathlib import Path
from typing import Annotated, Literal

from fedgram.automata.budget import Budget
from fedgram.automata.training import NGramOptions
from fedgram.core.errors import FedgramError, InputError, InvariantError
from fedgram.core.settings import NEEDS_DP, AtLeastOne, Between, Positive, SettingError, Settings, setting
from fedgram.core.toml_config import digest, read_config
from fedgram.distill.distillation import DistillationOptions
from fedgram.distill.refit.refit import RefitOptions
from fedgram.evaluate.comparison import EvaluationOptions
from fedgram.federated.collect_unigrams import UnigramOptions
from fedgram.fgram.pack import PackOptions
from fedgram.formats.exports import ExportFormat
from fedgram.privacy.options import PrivacyOptions
from fedgram.text.wordpieces import PieceOptions
from fedgram.training.options import FedAvgOptions, PretrainingOptions

Split = Literal["train", "dev", "test"]
Language = Literal["en_us", "pt_br"]
WordsPreset = Literal["W_30K", "W_8K", "W_demo"]
PiecesPreset = Literal["P_4K-S", "P_4K-L", "P_4K-G", "P_16K-S", "P_16K-L", "P_30K", "P_demo"]
PRESETS = ("demo", "en_us", "pt_br")
SIZES = ("small",)


@dataclass(frozen=True, slots=True)
class PopulationSection(Settings):
    """Where text comes from: files, or without any, typists that are generated from the seed.

    With a supplement and a whitelist but no users, the server has no user's text: devices of a federation measure.
    """

    users: str | None = setting(None, "Population: .parquet or .population")
    supplement: str | None = setting(None, "Text that the server may see: .txt, also as .gz, .bz2 or .zst.")
    whitelist: str | None = setting(None, "Words that devices may report, in lower case, one per line.")
    language: Language = setting("en_us", "Language of the text.")
    typists: AtLeastOne = setting(1500, "Number of generated typists.")
    supplement_sentences: AtLeastOne = setting(40_000, "Number of sentences of a generated supplement.")
    supplement_topics: Annotated[float, Between(0.05, 1)] = setting(
        1.0, "Share of the users' topics that a generated supplement covers."
    )

    def __post_init__(self) -> None:
        Settings.__post_init__(self)
        if (self.supplement is None) != (self.whitelist is None) or (self.users and not self.supplement):
            raise InvariantError(
                "give users, supplement and whitelist, or none of them to generate all three; a run on a federation "
                "may be without users"
            )

    @property
    def is_on_devices(self) -> bool:
        """Whether the server has no user's text, so that devices of a federation must measure."""
        return self.users is None and self.supplement is not None


@dataclass(frozen=True, slots=True)
class UnigramsSection(UnigramOptions):
    """Federated collection of word counts (§3.1). Devices of a federation take part once."""

    counts: str | None = setting(None, "Counts that were collected elsewhere: .unigrams")


@dataclass(frozen=True, slots=True)
class WordsSection(Settings):
    """R_W, the network of words (Table 2): its shape, its training on the supplement, then on devices."""

    preset: WordsPreset = setting("W_30K", "Shape of the network.")
    network: str | None = setting(None, "A network that was trained elsewhere: .safetensors")
    pretraining: PretrainingOptions = field(default_factory=PretrainingOptions)
    training: FedAvgOptions = field(default_factory=FedAvgOptions)


@dataclass(frozen=True, slots=True)
class PiecesSection(PieceOptions):
    """The word pieces (§6), and R_P, their network."""

    use: bool = setting(True, "Whether to train and distill a network of word pieces too.")
    model: str | None = setting(None, "Word pieces that were trained elsewhere.")
    preset: PiecesPreset = setting("P_4K-L", "Shape of the network.")
    network: str | None = setting(None, "A network that was trained elsewhere: .safetensors")
    pretraining: PretrainingOptions = field(default_factory=PretrainingOptions)
    training: FedAvgOptions = field(default_factory=FedAvgOptions)


@dataclass(frozen=True, slots=True)
class ArchitecturesSection(Settings):
    """Figure 4: other networks of word pieces, trained like `pieces` for their curves alone."""

    run: bool = setting(False, "Whether to train them.")
    presets: tuple[PiecesPreset, ...] = setting(
        ("P_4K-S", "P_4K-G", "P_16K-S", "P_16K-L", "P_30K"), "Shapes of the networks."
    )
    rounds: AtLeastOne = setting(100, "Number of rounds of each.")


@dataclass(frozen=True, slots=True)
class DistillationSection(DistillationOptions):
    """How the networks are distilled, and how many n-grams the refit can choose from."""

    room: Annotated[float, Between(above=1, high=10)] = setting(
        2.0, "Size of the inferred topology of the model that is refitted, as a multiple of the budget."
    )


@dataclass(frozen=True, slots=True)
class PaperWaySection(Settings):
    """The eight models once more, by Algorithm 1 exactly as printed, for Tables 3 and 4."""

    run: bool = setting(
        True, "Whether to distill the networks the paper's own way too: CapSampleApprox on the network of words."
    )
    samples: AtLeastOne | None = setting(
        None, "Number of sampled sentences to count; by default, as many as distillation.samples."
    )


@dataclass(frozen=True, slots=True)
class RefitSection(RefitOptions):
    """The federated refit (beyond the paper)."""

    run: bool = setting(True, "Whether devices count n-grams, to which the distilled model is fitted.")


@dataclass(frozen=True, slots=True)
class PrivacySection(PrivacyOptions):
    """What keeps single users out of all that the server learns (beyond the paper); see docs/privacy.md."""

    unigrams_share: Annotated[float, Between(above=0, high=1)] = setting(
        0.05, "With dp: the share of the privacy budget that word counts get, as zCDP.", needs=NEEDS_DP
    )
    networks_share: Annotated[float, Between(0, 1)] = setting(
        0.35, "With dp: the share that networks get, all together. What is left is for the counts of n-grams.",
        needs=NEEDS_DP,
    )  # fmt: skip
    evaluation_clip: Positive = setting(
        2500.0, "With dp, if devices measure: maximum L2 norm of a device's sums per model, about 2.5 times its words.",
        needs=NEEDS_DP,
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Check the values, and that something is left for n-grams."""
        PrivacyOptions.__post_init__(self)
        if self.unigrams_share + self.networks_share >= 1:
            raise SettingError("networks_share", "leaves nothing for the counts of n-grams; make it smaller")

    @property
    def of_unigrams(self) -> PrivacyOptions:
        """The privacy of word counts."""
        return self.part(self.unigrams_share) if self.is_dp else PrivacyOptions("none")

    @property
    def of_ngrams(self) -> PrivacyOptions:
        """The privacy of the counts of n-grams."""
        return self.part(1.0 - self.unigrams_share - self.networks_share)

    def of_network(self, networks: int) -> PrivacyOptions:
        """The privacy of each of so many networks."""
        return self.part(self.networks_share / networks) if self.is_dp else PrivacyOptions("none")


@dataclass(frozen=True, slots=True)
class FinalSection(PackOptions):
    """The model for the keyboard: the best one on dev users; how it is packed and exported."""

    cased: bool = setting(False, "Whether capitals must be right in the choice of the best model.")
    exports: tuple[ExportFormat, ...] = setting(("arpa",), "Other formats to write.")


@dataclass(frozen=True, slots=True)
class BaselinesSection(NGramOptions):
    """Models to compare with: of the supplement, of the train users' pooled text, and the two interpolated."""

    pooled: bool = setting(True, "Also train on the train users' pooled text, as an upper bound.")
    shares: Annotated[tuple[float, ...], Between(0, 1)] = setting(
        (0.1, 0.2, 0.3, 0.5), "Weights of the supplement in the interpolation; the best one on dev users is taken."
    )


@dataclass(frozen=True, slots=True)
class EvaluationSection(EvaluationOptions):
    """On whom the models are evaluated, and how (§7.2)."""

    split: Split = setting("test", "Users to evaluate on.")
    networks: bool = setting(True, "Evaluate the network of words too.")


@dataclass(frozen=True, slots=True)
class ClippingSection(Settings):
    """Table 1: the baseline with federated unigrams, by clipping threshold λ.

    λ matters only if words compete for a place: if the model has room for fewer words than devices report.
    """

    run: bool = setting(True, "Whether to measure the effect of clipping.")
    thresholds: Annotated[tuple[float, ...], Between(above=0, infinite=True)] = setting(
        (1.0, 1000.0, 5000.0, inf), "Values of λ; inf means no limit."
    )
    devices: AtLeastOne = setting(1000, "Number of devices that report, each once and the same ones for every λ.")
    max_words: AtLeastOne | None = setting(
        None, "Number of words of the models; by default, a quarter of the distinct words that devices report."
    )


@dataclass(frozen=True, slots=True)
class RunConfig(Settings):
    """A whole run."""

    seed: Annotated[int, Between(0)] = setting(0, "Seed of everything random.")
    title: str = setting("From users' text to a keyboard model", "Title of the report.")
    population: PopulationSection = field(default_factory=PopulationSection)
    privacy: PrivacySection = field(default_factory=PrivacySection)
    unigrams: UnigramsSection = field(default_factory=UnigramsSection)
    words: WordsSection = field(default_factory=WordsSection)
    pieces: PiecesSection = field(default_factory=PiecesSection)
    architectures: ArchitecturesSection = field(default_factory=ArchitecturesSection)
    external: NGramOptions = field(
        default_factory=lambda: NGramOptions(smoothing="modified-kneser-ney", open_vocabulary=True)
    )
    budget: Budget = field(default_factory=Budget)
    distillation: DistillationSection = field(default_factory=DistillationSection)
    paper_way: PaperWaySection = field(default_factory=PaperWaySection)
    refit: RefitSection = field(default_factory=RefitSection)
    final: FinalSection = field(default_factory=FinalSection)
    baselines: BaselinesSection = field(
        default_factory=lambda: BaselinesSection(order=4, smoothing="modified-kneser-ney", open_vocabulary=True)
    )
    evaluation: EvaluationSection = field(default_factory=lambda: EvaluationSection(experiment=True))
    clipping: ClippingSection = field(default_factory=ClippingSection)

    def __post_init__(self) -> None:
        """Check the values, and that there can be noise in trainings and counts if there must be."""
        Settings.__post_init__(self)
        trained = {"words": self.words.training, "pieces": self.pieces.training} if self.privacy.is_dp else {}
        unlimited = "must be finite with protection dp: it limits what one device can change"
        for name, training in trained.items():
            if isinf(training.update_norm) and training.noise == "none" and (name == "words" or self.pieces.use):
                raise SettingError(f"{name}.training.update_norm", unlimited)
        if self.privacy.is_dp and self.refit.run and self.refit.norm == inf:
            raise SettingError("refit.norm", unlimited)
        if self.privacy.is_dp and self.trained and not self.privacy.networks_share:
            problem = "must be greater than 0 with protection dp, unless networks come from elsewhere (words.network)"
            raise SettingError("privacy.networks_share", problem)

    @property
    def trained(self) -> int:
        """The number of networks that devices train."""
        return (self.words.network is None) + (self.pieces.use and self.pieces.network is None)

    def without_users(self) -> "RunConfig":
        """The same without what needs users' text at the server: pooled text, and simulated experiments.

        With noise, also without Table 1, whose counts are exact.
        """
        if self.architectures.run:
            raise FedgramError("architectures.run needs users at the server; set population.users, or leave it out")
        return replace(
            self, baselines=replace(self.baselines, pooled=False),
            clipping=replace(self.clipping, run=self.clipping.run and not self.privacy.is_dp),
            evaluation=replace(self.evaluation, experiment=False),
        )  # fmt: skip

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
    if name not in (*PRESETS, *SIZES):
        raise FedgramError(f"there is no preset {name!r}; presets are {', '.join((*PRESETS, *SIZES))}")
    return Path(str(files("fedgram.pipeline") / "presets" / f"{name}.toml"))


def read_run_config(
    source: str | Path, given: dict[tuple[str, str], str] | None = None, size: str | None = None
) -> RunConfig:
    """Read a run's configuration, or a preset by its name; files that it names must exist.

    `given` are paths that take the place of the configuration's own. A preset's paths are taken from where one is.
    `size` is one of `SIZES`: a preset whose keys take the place of the configuration's.
    """
    is_file = Path(source).is_file()  # a folder may have the name of a preset, such as the workspace of its run
    if not is_file and str(source) not in PRESETS:
        raise InputError(source, "no such file or preset", remedy=f"presets are {', '.join(PRESETS)}")
    preset = not is_file
    path = preset_path(str(source)) if preset else Path(source)
    folder = Path() if preset else path.parent
    config = read_config(path, RunConfig)
    if size is not None:
        config = read_config(preset_path(size), RunConfig, over=config)
    found: dict[tuple[str, str], str] = {}
    for section, key, value in config.files():
        found[section, key] = str(folder / value)
    found |= given or {}
    for (section, key), value in found.items():
        _check_file(source, section, key, Path(value), is_option=preset and section == "population")
    try:
        config = config.with_files(found)
    except InvariantError as error:
        raise InputError(source, f"population: {error}") from None
    return config.without_users() if config.population.is_on_devices else config


def _check_file(source: str | Path, section: str, key: str, path: Path, *, is_option: bool) -> None:
    """Refuse what is no file, and an empty one, before a run begins."""
    remedy = None
    if path.is_dir():
        problem = f"names a folder, not a file: {path}"
        remedy = f"fedgram data import {path} -o users.parquet makes a file of it" if key == "users" else "name a file"
    elif not path.is_file():
        problem = f"names a file that is not there: {path}"
        remedy = f"give it with --{key}" if is_option else None
        if is_option and key == "users":
            remedy = f"give it with --{key}; without users, `fedgram phone build` makes a model of public text"
    elif not path.stat().st_size:
        problem = f"names an empty file: {path}"
    else:
        return
    raise InputError(source, f"{section}.{key} {problem}", remedy=remedy)

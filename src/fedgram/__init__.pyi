"""The public surface, for type checkers: the same names as `_PLACES` of `__init__.py`."""

from fedgram.automata.budget import Budget as Budget
from fedgram.automata.merge import merge as merge
from fedgram.automata.model import NGramModel as NGramModel
from fedgram.core.compute import Compute as Compute
from fedgram.core.errors import FedgramError as FedgramError
from fedgram.distill.distillation import DistillationOptions as DistillationOptions
from fedgram.distill.distillation import distill as distill
from fedgram.distill.distillation import distill_onto as distill_onto
from fedgram.distill.refit.refit import RefitOptions as RefitOptions
from fedgram.distill.refit.refit import refit as refit
from fedgram.evaluate.comparison import EvaluationOptions as EvaluationOptions
from fedgram.evaluate.comparison import evaluate as evaluate
from fedgram.evaluate.on_devices import DeviceEvaluationOptions as DeviceEvaluationOptions
from fedgram.evaluate.on_devices import evaluate_on_devices as evaluate_on_devices
from fedgram.federated.collect_unigrams import UnigramOptions as UnigramOptions
from fedgram.federated.collect_unigrams import collect_unigrams as collect_unigrams
from fedgram.federated.discovery.discover import discover as discover
from fedgram.federated.discovery.options import DiscoveryOptions as DiscoveryOptions
from fedgram.federated.run_task import run_task as run_task
from fedgram.federated.task import FederatedTask as FederatedTask
from fedgram.fgram.reader import PackedModel as PackedModel
from fedgram.files import load as load
from fedgram.files import pack as pack
from fedgram.files import save as save
from fedgram.neural.network import Network as Network
from fedgram.pipeline.config import RunConfig as RunConfig
from fedgram.pipeline.run import run as run
from fedgram.text.population import Population as Population
from fedgram.text.wordpieces import WordPieces as WordPieces
from fedgram.text.wordpieces import train_pieces as train_pieces
from fedgram.training.central_training import pretrain as pretrain
from fedgram.training.options import FedAvgOptions as FedAvgOptions
from fedgram.training.options import PretrainingOptions as PretrainingOptions
from fedgram.training.train_federated import train_federated as train_federated

__version__: str
__all__: list[str]

"""Every parser of fedgram as a target."""

from tests.fuzz import model_targets, stored_targets, text_targets
from tests.fuzz.registry import TARGETS, Target, has

MODULES = (model_targets, text_targets, stored_targets)
__all__ = ["MODULES", "TARGETS", "Target", "has"]

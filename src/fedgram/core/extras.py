"""The optional packages: which extras of fedgram are installed, and one line that names all that are missing."""

from importlib.util import find_spec

from fedgram.core.errors import MissingDependencyError

PACKAGES = {  # a package of each extra by which it is recognised; a test compares them with pyproject.toml
    "data": "pyarrow", "flower": "flwr", "fst": "pynini", "keyboard": "starlette", "neural": "torch",
    "pieces": "sentencepiece", "plots": "matplotlib", "privacy": "dp_accounting", "secure": "cryptography",
    "transformers": "transformers", "zst": "zstandard",
}  # fmt: skip


def missing_extras(extras: list[str]) -> list[str]:
    """Those of the extras whose packages are not installed."""
    return [extra for extra in extras if find_spec(PACKAGES[extra]) is None]


def check_extras(feature: str, *extras: str) -> None:
    """Refuse a feature before it begins if packages are missing, and name all of them together."""
    if missing := missing_extras(sorted(extras)):
        raise MissingDependencyError(feature, ",".join(missing))

"""`fedgram demo`: a run on generated typists; see `cli/run.py`."""

from fedgram.cli.run import demo as command

__all__ = ["command"]

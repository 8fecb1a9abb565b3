"""What commands print while they work."""

from rich.progress import Progress

from fedgram.cli.console import Steps


def test_progress_of_an_earlier_step_is_ignored() -> None:
    """A file may still be read while the next step has begun, such as writing what was read."""
    with Progress(disable=True) as progress:
        steps = Steps(progress)
        reading = steps.begin("Reading", 10)
        reading(3)
        writing = steps.begin("Writing", 20)
        reading(4)
        writing(5)
        assert [(task.description, task.completed, task.total) for task in progress.tasks] == [("Writing", 5, 20)]

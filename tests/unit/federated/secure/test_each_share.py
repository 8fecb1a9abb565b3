"""The server takes shares for and of a device's neighbours on the ring only, and uses those that are right."""

import pytest
from tests.unit.federated.secure.stepped_round import STEPS, Round

from fedgram.federated.secure import messages
from fedgram.federated.secure.settings import AbandonedRoundError, RefusedMessageError, SecureSettings

FOUR_NEIGHBOURS = SecureSettings(min_devices=3, neighbours=4)


def neighbours(going: Round, device: int) -> list[int]:
    """The places of a device's neighbours on a ring of nine: two on either side."""
    place = going.clients[device]._number
    return sorted((place + step) % 9 for step in (-2, -1, 1, 2))


def test_a_device_shares_its_secrets_with_its_neighbours_only() -> None:
    """Every answer has shares for four places; in the wrong ones, one of the places is another, or the device's own."""
    going = Round(FOUR_NEIGHBOURS, devices=9).before(1)
    answer = going.clients[0].answer(going.requests[0])
    context = going.clients[0]._context
    committed, sealed = messages.read_shares(answer, context)
    own, ring = going.clients[0]._number, neighbours(going, 0)
    assert list(sealed) == ring
    strangers = [place for place in range(9) if place not in ring]
    assert own in strangers
    assert len(strangers) == 5
    for stranger in strangers:
        places = sorted([*ring[1:], stranger])
        wrong = messages.shares(context, committed, dict(zip(places, sealed.values(), strict=True)))
        with pytest.raises(RefusedMessageError, match="not for its neighbours"):
            going.server.receive(0, wrong)
    going.server.receive(0, answer)


def test_a_device_reveals_shares_of_its_neighbours_only() -> None:
    """One more share than it holds: of each device that is not its neighbour, or of itself."""
    going = Round(FOUR_NEIGHBOURS, devices=9).before(STEPS - 1)
    answer = going.clients[0].answer(going.requests[0])
    context = going.clients[0]._context
    opened, ring = messages.read_unmasking(answer, context), neighbours(going, 0)
    assert sorted(opened) == ring
    for stranger in set(range(9)) - set(ring):
        wrong = dict(sorted({**opened, stranger: opened[ring[0]]}.items()))
        with pytest.raises(RefusedMessageError, match="shares that it does not hold"):
            going.server.receive(0, messages.unmasking(context, wrong))
    going.server.receive(0, answer)


def test_a_device_reveals_no_shares_of_a_neighbour_that_shared_nothing() -> None:
    going = Round(devices=9).before(1)
    gone = going.server._number[8]
    for _ in range(STEPS - 2):
        going.requests = {device: request for device, request in going.requests.items() if device != 8}
        going.step()
    answer = going.clients[0].answer(going.requests[0])
    context = going.clients[0]._context
    opened = messages.read_unmasking(answer, context)
    assert gone not in opened
    wrong = dict(sorted({**opened, gone: next(iter(opened.values()))}.items()))
    with pytest.raises(RefusedMessageError, match="shares that it does not hold"):
        going.server.receive(0, messages.unmasking(context, wrong))
    going.server.receive(0, answer)


@pytest.mark.parametrize(("liars", "fine"), [(0, True), (2, True), (8, False)])
def test_the_key_of_a_device_that_left_is_recovered_from_right_shares_or_not_at_all(liars: int, fine: bool) -> None:
    """Wrong shares of this key alone; with a wrong key the sum would be of other numbers, so there is none."""
    going = Round(devices=9).before(2)
    left = going.clients[8]._number
    going.requests = {device: request for device, request in going.requests.items() if device != 8}
    for _ in range(2):
        going.step()
    for place, (device, answer) in enumerate(
        sorted(going.answers().items(), key=lambda a: going.clients[a[0]]._number)
    ):
        opened = messages.read_unmasking(answer, going.clients[device]._context)
        if place < liars:  # the first places are tried first
            opened[left] = opened[left][:-1] + bytes([opened[left][-1] ^ 1])
        going.server.receive(device, messages.unmasking(going.clients[device]._context, opened))
    if fine:
        assert going.server.total().vector.tolist() == [28, -28]
    else:
        with pytest.raises(AbandonedRoundError, match="correct ones are needed"):
            going.server.total()

"""Bad messages, narrowed to a link or a rank."""

from __future__ import annotations

from itertools import permutations

from megatron_nanguard.records.machine.screening import Outlier, Transfer
from megatron_nanguard.screening.outliers.bad_links import find_bad_links
from tests.unit.screening.results import EXPECTED, SPOILED, message, rank_name


def among(ranks: int, *bad: tuple[int, int], result: str = "wrong") -> list[Transfer]:
    """Messages between every two ranks, some of them bad."""
    pairs = permutations(range(ranks), 2)
    return [end for pair in pairs for end in message(*pair, result=result if pair in bad else "right")]


def test_no_messages_and_right_messages_give_no_outlier() -> None:
    assert find_bad_links([], rank_name) == []
    assert find_bad_links(among(4), rank_name) == []


def test_one_bad_direction_is_a_link() -> None:
    assert find_bad_links(among(4, (1, 2)), rank_name) == [
        Outlier(
            "link",
            (1, 2),
            "link from rank 1 to rank 2: what arrives is not what was sent",
            (f"rank 1 to rank 2: sent {EXPECTED}, arrived {SPOILED}",),
        )
    ]


def test_both_directions_are_one_link() -> None:
    (found,) = find_bad_links(among(4, (1, 2), (2, 1)), rank_name)
    assert (found.kind, found.ranks, len(found.evidence)) == ("link", (1, 2), 2)
    assert found.words.startswith("link between rank 1 and rank 2, both ways")


def test_between_two_ranks_the_link_is_named() -> None:
    (found,) = find_bad_links(among(2, (0, 1)), rank_name)
    assert (found.kind, found.ranks) == ("link", (0, 1))


def test_a_rank_that_fails_with_all_its_peers_is_named_instead_of_its_links() -> None:
    sends = find_bad_links(among(4, (1, 0), (1, 2), (1, 3)), rank_name)
    assert [each.words for each in sends] == ["rank 1 sends to none of its peers as it should"]
    receives = find_bad_links(among(4, (0, 1), (2, 1), (3, 1)), rank_name)
    assert [each.words for each in receives] == ["rank 1 receives from none of its peers as it should"]
    both = find_bad_links(among(3, (0, 1), (1, 0), (2, 1), (1, 2)), rank_name)
    assert [each.words for each in both] == ["rank 1 exchanges with none of its peers as it should"]


def test_a_rank_and_a_link_elsewhere_are_two_outliers() -> None:
    found = find_bad_links(among(5, (1, 0), (1, 2), (1, 3), (1, 4), (3, 4)), rank_name)
    assert [(each.kind, each.ranks) for each in found] == [("rank", (1,)), ("link", (3, 4))]


def test_data_that_is_wrong_before_sending_names_the_sender() -> None:
    (found,) = find_bad_links(message(0, 1, result="wrong", sent="wrong"), rank_name)
    assert (found.kind, found.ranks) == ("rank", (0,))
    assert found.evidence == (f"rank 0 to rank 1: {SPOILED} at the sender, expected {EXPECTED}",)


def test_a_late_message_is_not_called_wrong() -> None:
    (found,) = find_bad_links(among(4, (1, 2), result="late"), rank_name)
    assert found.words == "link from rank 1 to rank 2: messages do not arrive in time"
    assert found.evidence == ("rank 1 to rank 2: late, no end after 3 s",)


def test_a_message_that_only_one_end_tried_is_ignored() -> None:
    """The other end had given up on the link in the first direction."""
    one_end = message(2, 1, result="late")[1:]
    (found,) = find_bad_links([*message(1, 2, result="late"), *one_end], rank_name)
    assert found.words.startswith("link from rank 1 to rank 2:")

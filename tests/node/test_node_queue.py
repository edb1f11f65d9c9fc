"""The queue of a node: an exam that it forgets is never predicted, and results that it forgets never arrive."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mm3d.node.config import NodeSettings, read_settings
from mm3d.node.queue import ENDINGS, LONGEST_WAIT, Queue, Taken
from mm3d.shared.errors import InputError


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    opened = Queue(tmp_path / "queue.sqlite")
    yield opened
    opened.close()


def take(queue: Queue, now: float) -> Taken:
    taken = queue.take(now)
    assert taken is not None
    return taken


def test_an_exam_waits_until_no_more_images_come(queue: Queue) -> None:
    queue.receive("a", now=0.0, quiet=10.0)
    queue.receive("a", now=9.0, quiet=10.0)
    assert queue.take(18.9) is None
    assert take(queue, 19.0) == Taken("a", 2, 0)
    assert queue.take(99.0) is None  # it is being predicted


def test_images_that_come_during_a_prediction_are_predicted_too(queue: Queue) -> None:
    queue.receive("a", 0.0, 1.0)
    taken = take(queue, 1.0)
    queue.receive("a", 2.0, 1.0)
    assert queue.take(9.0) is None  # not twice at once
    queue.finish(taken, 1.0, ["pacs"], 9.0)
    assert take(queue, 9.0).version == 2


def test_only_the_latest_results_go_to_a_destination_that_was_away(queue: Queue) -> None:
    """Otherwise it would get the old ones last."""
    for version in (1, 2):
        queue.receive("a", version, 0.0)
        queue.finish(take(queue, 9.0), 1.0, ["pacs", "web"], 9.0)
        if version == 1:
            queue.deliver(Taken("a", 1, 0), "web", 9.0)
    assert queue.deliveries() == {
        ("pacs", "replaced"): 1,
        ("pacs", "waiting"): 1,
        ("web", "delivered"): 1,
        ("web", "waiting"): 1,
    }
    delivery = queue.take_delivery("pacs", 9.0)
    assert delivery is not None
    assert delivery.version == 2


def test_refused_results_are_kept_and_sent_again_ever_more_rarely(queue: Queue) -> None:
    queue.receive("a", 0.0, 0.0)
    queue.finish(take(queue, 0.0), 1.0, ["pacs"], 0.0)
    now, waits = 0.0, []
    for _ in range(40):
        delivery = queue.take_delivery("pacs", now)
        assert delivery is not None
        queue.refuse(delivery, "pacs", "answered A700", now, 30.0)
        after = next(row["due"] for row in queue.refused(1))
        assert queue.take_delivery("pacs", after - 0.01) is None
        waits.append(after - now)
        now = after
    assert waits[:4] == [30.0, 60.0, 120.0, 240.0]
    assert waits[-1] == LONGEST_WAIT
    assert [(row["reason"], row["attempts"]) for row in queue.refused(9)] == [("answered A700", 40)]


def test_after_a_crash_the_exam_is_predicted_again_and_does_not_keep_others_waiting(queue: Queue) -> None:
    queue.receive("a", 0.0, 0.0)
    queue.receive("b", 1.0, 0.0)
    assert take(queue, 9.0).exam == "a"
    queue.recover()
    assert queue.states() == {"waiting": 2}
    assert take(queue, 9.0).exam == "b"
    assert take(queue, 9.0) == Taken("a", 1, 1)


def test_an_exam_that_always_ends_the_node_is_given_up_with_the_reason(queue: Queue) -> None:
    queue.receive("a", 0.0, 0.0)
    for _ in range(ENDINGS):
        assert queue.take(9.0) is not None
        queue.recover()
    assert queue.states() == {"failed": 1}
    assert f"ended {ENDINGS} times" in queue.last_exams(1)[0]["reason"]
    queue.receive("a", 1.0, 0.0)  # it is sent again
    assert queue.states() == {"waiting": 1}


def test_only_what_is_done_everywhere_is_old(queue: Queue) -> None:
    for code in ("done", "refused", "waiting"):
        queue.receive(code, 0.0, 0.0)
    for _ in range(2):
        queue.finish(take(queue, 1.0), 1.0, ["pacs"], 1.0)
    queue.deliver(Taken("done", 1, 0), "pacs", 2.0)
    assert queue.old(before=1.5) == []
    assert queue.old(before=99.0) == ["done"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("folder = 'x'", "say where exams come from"),
        ("folder = 'x'\n[receive]\npeers = []", "name who may"),
        ("folder = 'x'\n[receive]\npeers = [{ae_title = 'A', address = 'pacs'}]", "must be an IP address"),
        ("folder = 'x'\n[receive]\npeers = [{ae_title = 'ALL TOO LONG A TITLE'}]", "is no AE title"),
        ("folder = 'x'\n[receive]\npeers = [{ae_title = 'A'}]\n[[destinations]]\nname = 'b'", "an ae_title or a url"),
        ("folder = 'x'\nquite_seconds = 3", "did you mean 'quiet_seconds'"),
        ("folder = 'x'\n[receive]\npeers = [{ae_title = 'A'}]\n[receive.tls]\nkey = 'nowhere.pem'", "is not a file"),
    ],
)
def test_wrong_settings_are_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text(text)
    with pytest.raises(InputError, match=said):
        read_settings(tmp_path / "node.toml")


def test_the_smallest_settings_are_enough(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text("folder = 'x'\n[receive]\npeers = [{ae_title = 'A'}]\n")
    settings = read_settings(tmp_path / "node.toml")
    assert isinstance(settings, NodeSettings)
    assert settings.send == ("measurements", "cad", "boxes")

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest

import heliograph as hg
from tests.cli.harness import Child, Helio, one_line_error, wait_until


@pytest.fixture
def queue(station: hg.Station) -> hg.Queue:
    station.publish_many("images", range(10))
    return station.queue("images", "resize", start="first", visibility_s=60, max_deliveries=2)


def test_list_shows_depth_and_workers(helio: Helio, queue: hg.Queue) -> None:
    first, *_ = queue.receive(3)
    first.nack(delay=100)
    (info,) = json.loads(helio("queue", "list", "--json").stdout)
    assert (info["name"], info["depth"], info["in_flight"], info["delayed"]) == ("resize", 8, 2, 1)
    assert info["dead_letters"] == 0
    heading, row = helio("queue", "list", "images").stdout.splitlines()
    assert " ".join(heading.split()) == "CHANNEL QUEUE DEPTH IN FLIGHT DELAYED OLDEST WORKERS DEAD LETTERS"
    assert row.split()[:5] == ["images", "resize", "8", "2", "1"]
    assert row.split()[-2:] == ["1", "0"]
    one_line_error(helio("queue", "list", "nothing"), 3)


def test_list_without_queues_says_how_to_make_one(helio: Helio, station: hg.Station) -> None:
    station.publish("images", 0)
    assert "queue=True" in helio("queue", "list").stderr
    assert json.loads(helio("queue", "list", "--json").stdout) == []


def test_show_tells_of_leases_workers_and_dead_letters(helio: Helio, queue: hg.Queue) -> None:
    for _ in range(2):
        queue.receive()[0].nack()
    queue.receive(30)
    shown = json.loads(helio("queue", "show", "images", "resize", "--json").stdout)
    assert shown["dead_letters"] == 1
    assert [one["name"] for one in shown["workers"]] == [queue.worker]
    assert [(one["offset"], one["state"]) for one in shown["leases"]] == [(n, "leased") for n in range(1, 10)]
    text = helio("queue", "show", "images", "resize").stdout
    assert "max deliveries  2" in text
    assert "0/1" in text
    assert "'nothing'" in one_line_error(helio("queue", "show", "images", "nothing"), 3)


def test_release_gives_a_stuck_message_to_somebody_else(helio: Helio, queue: hg.Queue) -> None:
    job, *_ = queue.receive(2)
    args = ("queue", "release", "images", "resize")
    assert "say which" in one_line_error(helio(*args), 2)
    assert "say which" in one_line_error(helio(*args, "--all", "--offset", 0), 2)
    assert helio(*args, "--offset", 0).stdout == "released 1 lease of resize of images\n"
    with pytest.raises(hg.LeaseLost):
        job.ack()
    assert json.loads(helio(*args, "--worker", queue.worker, "--json").stdout)["released"] == 1
    assert json.loads(helio(*args, "--all", "--json").stdout)["released"] == 0
    one_line_error(helio("queue", "release", "images", "nothing", "--all"), 3)


def test_sub_works_for_a_queue(helio: Helio, spawn: Callable[..., Child], queue: hg.Queue) -> None:
    held = queue.receive(4)
    worker = spawn("sub", "images", "--name", "resize", "--queue", "--exec", "cat > /dev/null")
    wait_until(lambda: json.loads(helio("queue", "list", "--json").stdout)[0]["depth"] == 0)
    wait_until(lambda: json.loads(helio("queue", "list", "--json").stdout)[0]["in_flight"] == 4)
    worker.signal(signal.SIGTERM)
    code, _, said = worker.end()
    assert code == 0, said
    assert "6 messages delivered" in said
    queue.ack(held)


def test_sub_says_how_often_messages_of_a_queue_are_tried(
    helio: Helio, spawn: Callable[..., Child], queue: hg.Queue, station: hg.Station
) -> None:
    queue.ack([job for job in queue.receive(10) if job.message.data])
    station.release("images", "resize")
    worker = spawn("sub", "images", "--name", "resize", "--queue", "--exec", "exit 3", "--max-retries", "2")
    wait_until(lambda: "images.dead-letter" in {info.name for info in station.channels()})
    wait_until(lambda: station.channel("images.dead-letter").messages == 1)
    worker.signal(signal.SIGTERM)
    assert worker.end()[0] == 0
    (letter,) = station.read("images.dead-letter")
    assert letter.data["attempts"] == 3
    assert station.queue_info("images", "resize").max_deliveries == 3


def test_sub_refuses_what_a_queue_cannot_do(helio: Helio) -> None:
    assert "--name" in one_line_error(helio("sub", "images", "--queue"), 2)
    assert "--count" in one_line_error(helio("sub", "images", "--queue", "--name", "q", "--count", 1), 2)


def test_redrive_hands_dead_letters_to_their_queue_alone(helio: Helio, station: hg.Station, queue: hg.Queue) -> None:
    jobs = queue.receive(10)
    for _ in range(2):
        for job in jobs[:2]:
            job.nack()
        jobs = queue.receive(10) + jobs[2:]
    queue.ack(jobs[2:] if jobs[0].message.data in (0, 1) else jobs)
    args = ("queue", "redrive", "images", "resize")
    assert "would redrive 2 dead letters to resize" in helio(*args, "--dry-run").stdout
    first = station.queue("images", "other", start="new")
    assert json.loads(helio(*args, "--offset", 0, "--json").stdout)["redriven"] == 1
    assert helio(*args).stdout == "redrove 1 dead letter to resize\n"
    assert helio(*args).stdout == "redrove 0 dead letters to resize\n"
    again = queue.receive(10)
    assert [(job.message.data, job.deliveries) for job in again] == [(0, 1), (1, 1)]
    assert first.receive(10) == [], "nothing was published"
    assert list(station.read("images.dead-letter")) == []
    one_line_error(helio("queue", "redrive", "images", "nothing"), 3)


def test_redrive_leaves_letters_whose_original_is_gone(helio: Helio, station: hg.Station, queue: hg.Queue) -> None:
    (job, *_) = queue.receive(1)
    job.nack()
    (job, *_) = queue.receive(1)
    job.nack()
    station.redact(job.message.id, channel="images")
    result = helio("queue", "redrive", "images", "resize")
    assert result.exit_code == 1
    assert "offset 0 stays" in result.stderr
    assert len(list(station.read("images.dead-letter"))) == 1

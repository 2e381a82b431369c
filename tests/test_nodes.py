"""One training over several machines: who gets a part of it, and what happens when one of them is gone."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Project
from fleet_parts import BOX, LAB, LIKE_LAB, A, B, C, Client, arrival, handing_out, make_head, task
from network_machines import NetworkMachine, network, why_none
from training_stage import read_until, wait_for

from photofinish.errors import PEER_LOST
from photofinish.fleet.trainings import Connected, Task
from photofinish.fleet.worker import key_of
from photofinish.results.records import Timings, read_record


def shared(name: str, nodes: int) -> Task:
    one = task(name)
    return replace(one, host=one.host.model_copy(update={"nodes": nodes}))


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    return Client(monkeypatch)


def test_a_training_takes_as_many_machines_at_once_as_it_asks_for_and_leaves_none_half_taken(client: Client) -> None:
    spreading = handing_out(client, shared("wide", 2), task("narrow"))
    assert spreading.look([A])
    [narrow] = client.given_now()  # one machine is too few for the other, and need not stand idle
    assert (narrow.job.title, narrow.job.part) == ("narrow", None)
    spreading.look([A, B])
    assert client.given_now() == []
    narrow.status = "finished"
    spreading.look([A, B])
    first, second = client.given_now()
    parts = [future.job.part for future in (first, second)]
    assert [part.node for part in parts if part] == [0, 1]
    assert len({part.attempt for part in parts if part}) == 1
    first.status = second.status = "finished"
    assert not spreading.look([A, B])
    assert spreading.failed == []


def test_what_took_longest_before_comes_first_and_only_to_machines_that_it_is_for(client: Client) -> None:
    spreading = handing_out(client, task("quick"), replace(task("slow"), expected_seconds=60.0))
    other = Connected("b", "tcp://b:1", frozenset({key_of(BOX, "cpu")}))
    spreading.look([other])
    assert client.given_now() == []
    spreading.look([other, A])
    assert [(future.worker, future.job.title) for future in client.given_now()] == [(A.address, "slow")]


def test_it_is_told_when_there_are_too_few_machines_for_a_training(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    spreading = handing_out(client, shared("wide", 2), slots="aac")
    spreading.look([A, B])  # on one machine
    spreading.look([A, B, C])
    told = capsys.readouterr().out
    assert told.count("wide takes 2 machines alike, and there are workers on 1: waiting for a worker") == 1
    assert "on 2" not in told


def test_two_workers_on_one_machine_never_train_at_once(client: Client) -> None:
    spreading = handing_out(client, shared("wide", 2), task("narrow"), slots="aac")
    spreading.look([A, B])
    [future] = client.given_now()
    assert future.job.title == "narrow"
    spreading.look([A, B])
    assert client.given_now() == []


def test_when_one_machine_is_gone_the_others_end_and_all_begin_anew_led_by_the_same(client: Client) -> None:
    spreading = handing_out(client, shared("wide", 2))
    spreading.look([B, A])
    leads, follows = client.given_now()
    assert (leads.worker, follows.worker) == (B.address, A.address)
    spreading.look([B, C])
    assert len(client.over) == 1
    assert client.given_now() == []  # one still ends
    leads.fail(f"{PEER_LOST} (closed)")
    spreading.look([C, B])
    leads, follows = client.given_now()
    assert (leads.worker, follows.worker) == (B.address, C.address)


def test_what_three_workers_were_killed_by_fails_and_what_leaving_ones_had_does_not(client: Client) -> None:
    spreading = handing_out(client, task("deadly"))
    for left in (True, False, True, False):
        spreading.look([A])
        assert client.given_now()
        if left:
            spreading.hear({"name": "a"})
        spreading.look([])
        spreading.hear(arrival("a", LAB))
    spreading.look([A])
    spreading.look([])
    assert spreading.failed == ["deadly"]


def test_of_several_parts_that_fail_the_one_that_failed_by_itself_is_told(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    spreading = handing_out(client, shared("wide", 2))
    spreading.look([A, B])
    leads, follows = client.given_now()
    leads.fail(f"{PEER_LOST} (closed)")
    spreading.look([A, B])
    assert len(client.over) == 1  # the other ends, too
    follows.fail("process 1 of 2 was killed")
    assert not spreading.look([A, B])
    assert "wide: failed: process 1 of 2 was killed\n" in capsys.readouterr().out


# -- for real ------------------------------------------------------------------------------------------

PARAMS: dict[str, Any] = {
    "defaults": {"epochs": 500, "batch_size": 128, "optimizer": {"name": "sgd", "lr": 0.1}},
    "devices": {"cpu": {"machine": "lab", "nodes": 2}},
    "datasets": {"digits": {"source": "digits", "validation": 0.15, "test": 0.15}},
    "experiments": {"small": {"dataset": "digits", "model": "linear"}},
}


@pytest.fixture
def head(tmp_path: Path) -> Project:
    return make_head(tmp_path / "head", PARAMS)


@pytest.fixture
def machines() -> Iterator[tuple[str, list[NetworkMachine]]]:
    with network(2) as made:
        yield made


def worker_on(machine: NetworkMachine, head: Project, number: int, address: str) -> subprocess.Popen[str]:
    root, temporary = head.root.with_name(f"m{number}"), head.root.with_name(f"tmp{number}")
    if not root.exists():
        head.git("clone", "--quiet", ".", str(root))
        temporary.mkdir()
    own = {"PYTHONPATH": str(root / "src"), "TMPDIR": str(temporary)}
    project = Project(root, head.environment | LIKE_LAB | own)
    return project.start(*machine.command("python", "-m", "photofinish.fleet.worker", address))


def led_by(head: Project) -> list[int]:
    """The machines that have checkpoints."""
    return [number for number in (0, 1) if list(head.root.with_name(f"m{number}").rglob("epoch-*.pt"))]


def trainings_of(head: Project) -> list[psutil.Process]:
    """Every process that trains on one of the machines."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        folder = process.info["cwd"] or ""
        if folder.startswith(str(head.root.parent)) and "stages/train.py" in (process.info["cmdline"] or []):
            found.append(process)
    return found


@pytest.mark.slow
@pytest.mark.skipif(bool(why_none()), reason=f"no machines can be simulated: {why_none()}")
def test_two_machines_share_a_training_that_ends_with_one_of_them_and_goes_on_with_another(
    head: Project, machines: tuple[str, list[NetworkMachine]]
) -> None:
    own_address, both = machines
    address = f"tcp://{own_address}:8786"
    with ExitStack() as stack:

        def start_worker(number: int) -> subprocess.Popen[str]:
            worker = worker_on(both[number], head, number, address)
            stack.callback(lambda: (worker.kill(), worker.communicate()))
            return worker

        workers = [start_worker(number) for number in (0, 1)]
        spreading = stack.enter_context(head.start("python", "-m", "photofinish.fleet.spread", "--listen", address))
        wait_for(lambda: spreading.poll() is not None or led_by(head))
        [leader] = led_by(head)
        workers[1 - leader].kill()
        assert wait_for(lambda: not trainings_of(head)) < 30
        start_worker(1 - leader)
        told = read_until(spreading, "done by")
        spreading.kill()
    assert "is gone; it goes to another worker" in told
    [record] = head.root.parent.glob("m*/.photofinish/worker/results/small/cpu/timed/timings.json")
    timings = read_record(record, Timings)
    assert timings.device_count == 2
    assert timings.resumed_at_epochs

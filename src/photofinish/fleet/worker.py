"""A worker: trains what a head sends, one training at a time, and pushes each result to DVC's remote.

`python -m photofinish.fleet.worker tcp://head:8786`; whenever there is no head, it waits for one. Head and worker know
of each other which machine serves which training, and whether both run the same code.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import platform
import signal
import time
import uuid
from contextlib import suppress
from functools import cache
from importlib import metadata, util
from typing import Any
from urllib.parse import urlsplit

from photofinish.errors import MistakeError, TerminatedError, UserError, run_stage
from photofinish.files import sha256_of_bytes, state_folder
from photofinish.fleet.jobs import end_with_input, is_leaving, stop_training
from photofinish.locks import machine_identity, sole_writer
from photofinish.machine.fingerprint import Machine
from photofinish.machine.host import CPU_VARIABLES
from photofinish.results.records import DEVICE_LABELS, DeviceLabel
from photofinish.source_code import our_code

TOPIC = "photofinish"
"""of the messages that workers leave at the scheduler"""
WORKER = "worker"
"""the lock that a clone's one worker holds"""
HEAD = "tcp://127.0.0.1:8786"
DASK = {
    "distributed.worker.profile.enabled": False,  # which costs the timed training time
    "distributed.comm.timeouts.tcp": "20s",  # after which a cut network or a dead machine is noticed
    # Nothing: what matters of it is told in words of our own, and a message to who has just left is a page to Dask.
    "distributed.logging": dict.fromkeys(("distributed", "distributed.client", "distributed.gc"), logging.CRITICAL + 1),
}
_PAUSE_SECONDS = 0.2
_RETRY_SECONDS = 2.0


def require_dask() -> None:
    """It is no dependency of a project on one machine."""
    if util.find_spec("distributed") is None:
        raise UserError("spreading over machines needs Dask: `python -m pip install distributed`, on each of them")


def require_address(address: str, setting: str) -> None:
    """Refuse what no scheduler can be reached at."""
    with suppress(ValueError):  # a port beyond 65535
        parts = urlsplit(address)
        if parts.scheme in ("tcp", "tls") and parts.hostname and parts.port:
            return
    raise MistakeError(f"{setting}={address}: a head's address is as tcp://name:8786")


def root_cause(error: BaseException) -> BaseException:
    """Where Dask says no more than that something failed to start, what was wrong."""
    return root_cause(error.__cause__) if error.__cause__ else error


@cache
def fleet_code() -> str:
    """Another one where head and worker could misunderstand each other."""
    code = our_code("fleet").sha256
    return sha256_of_bytes(f"{code} {metadata.version('distributed')}".encode())[:16]


def key_of(machine: Machine, device: DeviceLabel) -> str:
    """The name of the Dask resource that machines have which may stand for each other on this device."""
    if device == "cpu":
        machine = machine.model_copy(update={"accelerators": {}, "software": machine.software.with_only(CPU_VARIABLES)})
    return f"{device}-{sha256_of_bytes(f'{machine.model_dump_json()} {fleet_code()}'.encode())[:16]}"


async def _serve(head: str, machine: Machine, name: str | None, patience_seconds: float | None) -> None:
    """Work for this head until it is gone."""
    from distributed import Status, Worker

    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    worker: Any = await Worker(
        head,
        name=name or f"{platform.node()}-{uuid.uuid4().hex[:4]}",
        nthreads=1,
        resources={key_of(machine, device): 1 for device in DEVICE_LABELS},
        host="127.0.0.1",  # it is only ever spoken to over the connection that it opens itself
        dashboard_address=None,
        memory_limit=0,
        death_timeout=patience_seconds,
        local_directory=str(state_folder() / "dask"),
    )
    try:
        facts = {"name": worker.name, "machine": machine.model_dump_json(), "code": fleet_code()}
        facts["slot"] = machine_identity()
        worker.log_event(TOPIC, facts)
        print(f"working for {head}", flush=True)
        while worker.status == Status.running:
            await asyncio.sleep(_PAUSE_SECONDS)
    finally:
        stop_training()
        worker.log_event(TOPIC, {"name": worker.name})  # that it leaves: what it trains has not killed it
        await worker.close()


def serve(head: str, name: str | None, patience_seconds: float | None) -> None:
    """Work for whatever head there is at this address, one after another, until patience is at an end."""
    import dask

    dask.config.set(DASK)
    machine = Machine.here()
    with sole_writer(state_folder() / "locks", WORKER, patience_seconds=patience_seconds or 0):
        while True:
            is_leaving.clear()
            print(f"waiting for a head at {head} (`make spread` there)", flush=True)
            try:
                asyncio.run(_serve(head, machine, name, patience_seconds))
            except asyncio.CancelledError:
                raise TerminatedError("terminated") from None
            except TimeoutError:
                raise UserError(f"no head at {head} within {patience_seconds:g} s") from None
            except RuntimeError as error:  # the head was going, or knows another of this address
                print(f"not taken: {root_cause(error)}", flush=True)
                time.sleep(_RETRY_SECONDS)


def main() -> None:
    """Work for the head that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m photofinish.fleet.worker", description=__doc__)
    parser.add_argument("head", nargs="?", default=HEAD, help="the address of its scheduler, tcp://host:port")
    parser.add_argument("--end-with-parent", action="store_true", help="when standard input is closed")
    parser.add_argument("--name", help="what the head calls it")
    parser.add_argument("--death-timeout", type=float, help="how many seconds it waits for a head; by default, forever")
    args = parser.parse_args()
    require_dask()
    require_address(args.head, "HEAD")
    if args.end_with_parent:
        end_with_input(and_group=False)
    serve(args.head, args.name, args.death_timeout)


if __name__ == "__main__":
    run_stage(main)

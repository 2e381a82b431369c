"""A worker, which runs a head's jobs one by one and pushes each result to DVC's remote.

`photofinish worker tcp://head:8786` serves one head after another.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from importlib import metadata
from urllib.parse import urlsplit

from photofinish.errors import TerminatedError, UserError
from photofinish.files import sha256_of_bytes, state_folder
from photofinish.machine.fingerprint import Machine
from photofinish.planning.source_code import module_code
from photofinish.remote.jobs import is_leaving, stop_job
from photofinish.results.trained import DEVICE_LABELS, DeviceLabel

CODE = "photofinish"
"""Key of the head's `code_version` in the scheduler's metadata."""
_LOGGERS = ("distributed", "distributed.client", "distributed.gc")
DASK = {
    "distributed.worker.profile.enabled": False,  # it would slow timed trainings down
    "distributed.scheduler.allowed-failures": 2,
    "distributed.comm.timeouts.tcp": "20s",  # until a cut network is noticed
    "distributed.logging": dict.fromkeys(_LOGGERS, logging.CRITICAL + 1),
}
_CLOSED = ("tls://", "tcp://127.", "tcp://localhost:", "tcp://[::1]:")
_RETRY_SECONDS = 2.0


def code_version() -> str:
    """Return a hash of Dask's version and of the code that head and worker must share."""
    code = module_code(__name__).sha256
    return sha256_of_bytes(f"{code} {metadata.version('distributed')}".encode())[:16]


def key_of(machine: Machine, device: DeviceLabel) -> str:
    """Return the Dask resource of machines that are equal for this device."""
    if device == "cpu":
        software = machine.software.of_cpu()
        machine = machine.model_copy(update={"accelerators": {}, "software": software})
    return f"{device}-{sha256_of_bytes(machine.model_dump_json().encode())[:16]}"


def resources_of(machine: Machine) -> dict[str, float]:
    return {key_of(machine, device): 1 for device in DEVICE_LABELS}


def warn_if_open(address: str) -> None:
    """Print a line if other machines may reach this address, and it needs no certificate."""
    if not address.startswith(_CLOSED):
        print(
            f"anyone who can reach {address} can run any program here as this user: keep it in a "
            f"private network, or use certificates and tls://",
            flush=True,
        )


async def _work(head: str, machine: Machine) -> None:
    """Run a head's jobs until the head has ended."""
    from distributed import Client, Worker
    from distributed.comm import get_local_address_for

    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    async with Client(head, asynchronous=True, set_as_default=False, timeout="5s") as client:
        if await client.get_metadata([CODE]) != code_version():
            raise UserError(
                "the coordinator has another version of photofinish or Dask: `git pull`, then "
                "start this worker again"
            )
    is_leaving.clear()
    async with Worker(
        head,
        nthreads=1,
        resources=resources_of(machine),
        dashboard_address="127.0.0.1:0",
        memory_limit=0,
        local_directory=str(state_folder() / "dask"),
        # Without it, Dask listens on all addresses, also if the head is on this machine.
        host=urlsplit(get_local_address_for(head)).netloc,
    ) as worker:
        print(f"connected to {head}", flush=True)
        warn_if_open(worker.address)
        try:
            await worker.finished()
        finally:
            stop_job()


def serve(head: str) -> None:
    """Run the jobs of one head after another at this address."""
    import dask

    dask.config.set(DASK)
    machine = Machine.here()
    print(f"waiting for `photofinish spread` at {head}", flush=True)
    while True:
        try:
            asyncio.run(_work(head, machine))
            print("`photofinish spread` has ended: waiting for the next one", flush=True)
        except asyncio.CancelledError:
            raise TerminatedError("terminated") from None
        except (OSError, KeyError):  # no head yet, or it has not named its code yet
            pass
        time.sleep(_RETRY_SECONDS)

"""What head and workers know of each other: which machine serves which training, and whether both run the same code."""

from __future__ import annotations

from functools import cache
from importlib import metadata, util
from pathlib import Path

from photofinish.errors import UserError
from photofinish.files import sha256_of_bytes
from photofinish.machine.fingerprint import Machine
from photofinish.machine.software import CPU_VARIABLES
from photofinish.results.records import DeviceLabel
from photofinish.source_code import stage_code

TOPIC = "photofinish"
"""of the messages that workers leave at the scheduler"""
HEAD = "tcp://127.0.0.1:8786"
DASK = {
    "distributed.worker.profile.enabled": False,  # which costs the timed training time
    "distributed.comm.timeouts.tcp": "20s",  # after which a cut network or a dead machine is noticed
    # What matters of it is told in words of our own.
    "distributed.logging": {"distributed": "critical", "distributed.client": "critical"},
}


def require_dask() -> None:
    """It is no dependency of a project on one machine."""
    if util.find_spec("distributed") is None:
        raise UserError("spreading over machines needs Dask: `python -m pip install distributed`, on each of them")


@cache
def fleet_code() -> str:
    """Another one where head and worker could misunderstand each other."""
    code = stage_code(Path(__file__).with_name("worker.py")).sha256
    return sha256_of_bytes(f"{code} {metadata.version('distributed')}".encode())[:16]


def key_of(machine: Machine, device: DeviceLabel) -> str:
    """The name of the Dask resource that machines have which may stand for each other on this device."""
    if device == "cpu":
        machine = machine.model_copy(update={"accelerators": {}, "software": machine.software.with_only(CPU_VARIABLES)})
    return f"{device}-{sha256_of_bytes(f'{machine.model_dump_json()} {fleet_code()}'.encode())[:16]}"

"""Memory that a step frees is there for the next step."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

MANY_STEPS = """
import resource, sys
import torch
from photofinish.training.torch_device import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()

def step():
    made = [torch.ones(2**18) for _ in range(20)]  # of 1 MiB each

for _ in range(4):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


# glibc adapts to what a program does, now and then rightly: here it starts with thresholds that don't fit.
EAGER_TO_GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}


def page_faults(which: str) -> int:
    command, environment = [sys.executable, "-c", MANY_STEPS, which], os.environ | EAGER_TO_GIVE_BACK
    return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library: it keeps its own ways")
def test_a_step_asks_the_system_for_no_memory_that_the_step_before_had() -> None:
    assert page_faults("keep") * 20 < page_faults("as it is")

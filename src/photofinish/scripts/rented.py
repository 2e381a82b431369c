"""Records of a script that a rented machine sent back, by the task of `photofinish rent`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from photofinish.config.scripts import PLACEHOLDER
from photofinish.errors import UserError
from photofinish.results.measured import Measured
from photofinish.scripts.script_record import hashes_of

FOLDER, ANSWER = "rented-", "photofinish-answer.json"


def rented_records(command: Sequence[str]) -> Iterator[tuple[Measured, Measured]]:
    """Yield the records of this command on each rented machine's CPU and GPU."""
    for path in sorted(Path().glob(f"{FOLDER}*/{ANSWER}")):
        try:
            records = json.loads(path.read_bytes())[-1]["records"]
            jobs = [_measured(each) for each in records.values()]
        except (LookupError, TypeError, AttributeError, ValidationError, ValueError) as error:
            raise UserError(f"this photofinish can't read {path}: remove it") from error
        script = jobs[1].script if len(jobs) > 1 else None
        if script is None:
            continue
        here = [word.replace(PLACEHOLDER, script.device_kind) for word in command]
        if shlex.split(script.command)[1:] != here[1:]:  # by any Python
            continue
        if script.files == hashes_of(script.files):
            yield jobs[0], jobs[1]
        else:
            print(f"{path} is ignored: the script has changed since.", file=sys.stderr)


def _measured(job: dict[str, Any]) -> Measured:
    """Return the record of a job, without the job's length."""
    own = {name: value for name, value in job.items() if name in Measured.model_fields}
    return Measured.model_validate_json(json.dumps(own))

"""Where a step goes, as a table: a row for each part of each run."""

from __future__ import annotations

import pandas as pd

from photofinish.comparison.diagnosis import costs_of
from photofinish.comparison.step_costs import PARTS
from photofinish.comparison.table import DeviceResult, Trained

_COLUMNS = ("experiment", "device", "part", "median_seconds", "share")


def attribution_table(results: list[DeviceResult]) -> pd.DataFrame:
    """In the order of the results and of a step; none of runs whose steps were not taken apart.

    `share` is of a synchronised step, its mean over an epoch: so it counts what only an epoch's first step waits for.
    """
    rows = [
        (result.experiment, result.device, part, attribution.parts.median_seconds[field], costs.shares[part])
        for result in results
        if isinstance(result, Trained)
        and (costs := costs_of(result.record, result.timings))
        and (attribution := result.timings.attribution)
        for part, field in PARTS.items()
    ]
    return pd.DataFrame(rows, columns=list(_COLUMNS))

"""Results on disk, as the stages leave them, made from results in memory."""

from __future__ import annotations

from pathlib import Path

from photofinish.comparison.table import DeviceResult, NotTrained, Trained
from photofinish.files import write_text_atomically
from photofinish.results import records
from photofinish.results.epochs import EpochMetrics


def write_result(results: Path, result: DeviceResult) -> Path:
    """`results/<experiment>/<device>`, without weights; the folder."""
    folder = results / result.experiment / result.device
    records.write_record(folder / records.LEARNED / records.RECORD, result.record)
    if isinstance(result, NotTrained):
        records.write_record(folder / records.TIMED / records.TIMINGS, records.Untimed())
        return folder
    records.write_record(folder / records.TIMED / records.TIMINGS, result.timings)
    records.write_record(folder / records.LEARNED / records.FIRST_STEP, result.first_step)
    rows = [EpochMetrics(**row) for row in result.history.to_dict(orient="records")]
    write_text_atomically(folder / records.LEARNED / records.HISTORY, records.history_csv(rows))
    return folder


def write_scores(results: Path, result: Trained) -> None:
    """What `evaluate` leaves of one device."""
    scores = records.Evaluation(
        experiment=result.experiment, class_names=("cat", "dog"), devices={result.device: result.scores}
    )
    records.write_record(results / result.experiment / records.EVALUATED / records.EVALUATION, scores)

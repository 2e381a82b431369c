"""Results on disk, as the stages leave them, made from results in memory."""

from __future__ import annotations

from pathlib import Path

from photofinish.comparison.table import DeviceResult, NotTrained, Trained
from photofinish.files import write_text_atomically
from photofinish.results import records
from photofinish.results.epochs import EpochMetrics


def made_up_attribution(
    waiting: float, copying: float = 0.0, other_step_seconds: float = 0.002, **others: object
) -> records.Attribution:
    """Of batches of 16, whose steps are taken apart twice, beside steps on 2 images."""
    parts = {"waiting": waiting, "copying": copying, "forward": 0.003, "backward": 0.005, "optimizer": 0.002, "rest": 0}
    settings = {
        "batch_alone_seconds": (waiting, waiting),
        "other_batch_images": 2,
        "other_batch": records.SteadyState(steps_per_sample=1, sample_seconds=(other_step_seconds,)),
        "resident_fits": True,
        "parts": records.StepParts(**{f"{part}_seconds": (float(value),) * 2 for part, value in parts.items()}),
        **others,
    }
    return records.Attribution(**settings)


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

"""Every case of an answer: its two lines, and a word that follows from their numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from conftest import MakeResult
from result_files import BUSY, STEP, pair_of, paired, trained, with_timings
from test_default_jobs import cpu_result
from test_references import recorded

from photofinish.answer.comparison import Comparison
from photofinish.answer.result import Trained
from photofinish.config.compare import Comparing
from photofinish.reporting.model_words import model_text
from photofinish.reporting.sentences import verdict
from photofinish.results import EpochTiming
from photofinish.results.records import DeviceLabel

Case = Callable[["Jobs"], Comparison]
HOUR_STEP = STEP.model_copy(update={"flops": 10**13})
"""Step that takes a T4 1.2 s by estimate, and so 3.8 min in five epochs of 600 samples."""
QUICK_STEP = STEP.model_copy(update={"flops": 10**11})
T4, NO_GPU = Comparing(accelerators=("T4",)), Comparing(accelerators=())


class Jobs:
    """Made-up jobs of five epochs."""

    def __init__(self, make_result: MakeResult) -> None:
        self.make_result = make_result

    def cpu(self, seconds: float, device: DeviceLabel = "cpu", **timings: Any) -> Trained:
        """Make a job of so many seconds, with 2.5 s of start-up."""
        run = trained(
            self.make_result,
            device=device,
            epoch_seconds=((seconds - 2.5) / 5 - 0.1,) * 5,
            total_seconds=seconds,
            device_name="Some CPU" if device == "cpu" else "Some GPU",
        )
        return with_timings(run, **timings)

    def gpu(self, seconds: float) -> Trained:
        return self.cpu(seconds, "gpu")

    def rent(self, seconds: float, **settings: float) -> Comparison:
        """Compare a job with a T4 to rent."""
        cpu = self.cpu(seconds, operations=HOUR_STEP)
        return pair_of(cpu, settings=T4.model_copy(update=settings))

    def first_epochs(self, *epoch_seconds: float) -> Comparison:
        """Compare a job of 80 epochs, of which these were trained, with a T4 to rent."""
        timings = {
            "epochs": tuple(EpochTiming(each - 0.1, 0.1, 1.7e9) for each in epoch_seconds),
            "epochs_left": 80 - len(epoch_seconds),
            "total_seconds": 2.5 + sum(epoch_seconds),
        }
        return pair_of(self.cpu(100.0, operations=QUICK_STEP, **timings), settings=T4)

    def rnn(self) -> Comparison:
        """Compare a job whose operators have no formula."""
        uncounted = HOUR_STEP.model_copy(update={"without_formula": ("_thnn_fused_lstm_cell",)})
        return pair_of(self.cpu(900.0, operations=uncounted), settings=T4)


START_UP = {"startup_seconds": 10.0}
RENT = r"(?P<here>{t}) here; on a T4 ~(?P<there>{t}) \({n}-{n}\) after (?P<start>{t}) of start"
RANGE = r"(?P<here>{t}) \({n}-(?P<longest>{n})\)"
SPEEDUP = r"(?P<x>{n})x \((?P<low>{n})-(?P<high>{n})\)"
GPU = rf"(?P<there>{{t}}) on the Some GPU, (?P<here>{{t}}) on the CPU: {SPEEDUP}"
CASES: dict[str, tuple[Case, str, str]] = {
    "no, short": (
        lambda jobs: pair_of(jobs.cpu(13.0, **START_UP), settings=NO_GPU),
        r"No\. (?P<here>{t}) here, and no GPU makes it more than (?P<limit>{n})x faster: "
        r"(?P<share>\d+)% is start-up\.",
        r"stay on this CPU\.",
    ),
    "no, loading": (
        lambda jobs: pair_of(cpu_result(jobs.make_result, "digits-mlp", 1.0)),
        r"No\. {t} here, and no GPU makes it more than (?P<limit>{n})x faster: "
        r"the loader is (?P<share>\d+)% of an epoch\.",
        r"`input: resident`\. About {n}x faster on this CPU \({n}-{n}\), .*same bits.*\.",
    ),
    "no, saves too little": (
        lambda jobs: jobs.rent(700.0, worth_saving=60.0),
        rf"No, not for rent\. {RENT}: gains ~(?P<gain>{{t}}), (?P<asked>{{t}}) asked\..*",
        r"stay\. Renting pays surely from \d+ runs, perhaps from \d+\. "
        r"On a T4 of your own: ~{n}x \({n}-{n}\)\.",
    ),
    "no, shorter than a start": (
        lambda jobs: jobs.rent(200.0),
        r"No, not for rent\. .*",
        r"stay.*",
    ),
    "rent, yes": (
        lambda jobs: jobs.rent(3600.0),
        r"Probably yes, rent a T4: ~(?P<total>{t}) \({n}-{n}\) with its start, {n} USD, "
        r"not (?P<here>{t})\..*",
        r"`photofinish rent T4`\.",
    ),
    "close call": (
        lambda jobs: jobs.rent(3600.0, worth_saving=56.0, rental_minutes=0.1),
        rf"Close call\. {RANGE} here, ~(?P<total>{{t}}) \({{n}}-{{n}}\) on a T4 with its start: "
        r"gains (?P<least>{n})-(?P<most>{t}), (?P<asked>{t}) asked\..*",
        r"one run: stay\. \d+ or more: `photofinish rent T4`\.",
    ),
    "can't tell, by the GPU's time": (
        lambda jobs: jobs.rent(1000.0),
        rf"Can't tell yet: ~{{t}} \({{n}}-{{n}}\) on a T4 with its start, {RANGE} here\. "
        r"It gains (?P<least>{n})-(?P<most>{t}), and (?P<asked>{t}) are asked\.",
        r"`photofinish rent T4` \(~{t}, {n} USD\)\.",
    ),
    "can't tell, by the time here": (
        lambda jobs: jobs.first_epochs(6.0, 9.0, 7.0),
        r"Can't tell yet: ~{t}.* on a T4 with its start, ~{t}.* here\. It gains .* asked\.",
        r"`time_limit: \d+ s` in params\.yaml \({t} more\)\.",
    ),
    "use, yes": (
        lambda jobs: jobs.rent(3600.0, rental_minutes=0.0, worth_saving=0.0),
        r"Probably yes, use a T4: ~(?P<total>{t}) \({n}-{n}\), not (?P<here>{t})\.",
        r"train on a T4\.",
    ),
    "use, no": (
        lambda jobs: jobs.rent(20.0, rental_minutes=0.0, worth_saving=0.0),
        r"No\. (?P<here>{t}) here; on a T4 ~(?P<there>{t}) \({n}-{n}\)\.",
        r"stay on this CPU\.",
    ),
    "GPU here, yes": (
        lambda jobs: pair_of(jobs.cpu(125.0), jobs.gpu(10.0)),
        rf"Yes\. {GPU}, measured\..*",
        r"train on the GPU\.",
    ),
    "GPU here, no": (
        lambda jobs: pair_of(jobs.cpu(10.0), jobs.gpu(125.0)),
        rf"No\. {GPU}\..*",
        r"train on the CPU\.",
    ),
    "GPU here, close call": (
        lambda jobs: pair_of(jobs.cpu(100.0), jobs.gpu(98.0)),
        r"Close call\. (?P<here>{t}) on the CPU and (?P<there>{t}) on the Some GPU: "
        rf"{SPEEDUP}\.",
        r"train on the one that is free\.",
    ),
    "no estimate": (
        lambda jobs: jobs.rnn(),
        r"Can't tell: {t} here, and no estimate for a GPU\. No formula counts _thnn_fused.*\.",
        r"train it once on a GPU\.",
    ),
    "busy": (
        lambda jobs: pair_of(jobs.cpu(125.0, load=(BUSY,)), jobs.gpu(80.0)),
        r"Can't tell yet: {t} on the Some GPU, {t} as busy as now on the CPU: {n}x\..* "
        r"Machine 40% busy\.",
        r"`photofinish run .*` when the machine is quiet \(at most {t}\)\.",
    ),
}


def minutes(text: str) -> float:
    number, unit = text.split()
    return float(number.replace(",", "")) * {"h": 60.0, "min": 1.0, "s": 1 / 60}[unit]


@pytest.mark.parametrize("case", CASES)
def test_each_case_has_its_two_lines_and_its_word_follows_from_the_numbers_on_them(
    case: str, make_result: MakeResult
) -> None:
    make, first, second = CASES[case]
    lines = verdict(make(Jobs(make_result))).lines()
    spelled = {"t": r"[\d.,]+ (?:s|min|h)", "n": r"\d[\d.,]*"}
    found = re.fullmatch(re.sub(r"\{(t|n)\}", lambda key: spelled[key[1]], first), lines[0])
    do = re.sub(r"\{(t|n)\}", lambda key: spelled[key[1]], second)
    assert found, lines[0]
    assert re.fullmatch(rf"Do: {do} Model: [^.]+\.", lines[1]), lines[1]
    said = found.groupdict()
    word = lines[0].split(".")[0].split(",")[0].split(":")[0]
    if "x" in said:
        low, high = float(said["low"]), float(said["high"])
        assert low <= minutes(said["here"]) / minutes(said["there"]) <= high
        expected = "Yes" if low > 1 else "No" if high < 1 else "Close call"
        assert word == expected
    elif "limit" in said:  # what stays on the CPU limits the gain, at its high end
        limit = 1 / (float(said["share"]) / 100)
        assert float(said["limit"]) < 1.5
        assert limit < 1.5
    elif "gain" in said:
        gain, asked = minutes(said["gain"]), minutes(said["asked"])
        parts = minutes(said["here"]) - minutes(said["there"]) - minutes(said["start"])
        assert gain == pytest.approx(parts, rel=0.2)
        assert gain < asked
    elif "total" in said and word == "Probably yes":
        assert minutes(said["here"]) - minutes(said["total"]) > 5
    elif "least" in said:
        most, asked = minutes(said["most"]), minutes(said["asked"])
        least = minutes(f"{said['least']} {said['most'].split()[1]}")
        assert least < asked < most
        assert most <= minutes(f"{said['longest']} {said['here'].split()[1]}")
        start = minutes(said.get("start") or "5 min") if word != "Close call" else 0.1
        is_close = most + start <= 1.6 * (least + start)
        assert word == ("Close call" if is_close else "Can't tell yet")


def test_a_model_is_compared_with_a_record_by_what_it_has(make_result: MakeResult) -> None:
    jobs = Jobs(make_result)
    cpu, gpu = jobs.cpu(125.0), jobs.gpu(10.0)
    whole = recorded(gpu)

    def text(first_step: Any, losses: tuple[float, ...] = ()) -> str:
        history = [
            replace(epoch, training_loss=loss)
            for epoch, loss in zip(whole.history, losses, strict=False)
        ]
        changed = {"first_step": first_step, "history": (*history, *whole.history[len(history) :])}
        (pair,) = paired([cpu], None, [whole.model_copy(update=changed)])
        return model_text(pair)

    step = gpu.first_step
    assert step
    assert text(None) == "losses alike* (Some GPU, the first 5 epochs)"
    assert text(None, (1.0, 9.0)) == "losses alike* (Some GPU, the first epoch)"
    assert text(None, (9.0,)) == "not shown (Some GPU*: losses differ in the first epoch)"
    assert text(step) == "first step and losses alike* (Some GPU, the first 5 epochs)"
    other = step.model_copy(update={"gradients": {**step.gradients, "3.weight": (0.25, -0.2)}})
    assert text(other) == "different* from the first gradient on (Some GPU)"
    other = step.model_copy(update={"batch_order_sha256": "3" * 64})
    assert text(other) == "different* from the batch order on (Some GPU)"

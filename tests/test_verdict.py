"""The sentence that answers the question, with the figures it rests on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import MakeResult
from result_files import BUSY, QUIET, made_up_attribution, pair_of, trained, with_timings, write_results

from photofinish.comparing.device_results import DeviceResult
from photofinish.comparing.pairs import read_pair, with_settings
from photofinish.comparing.verdict import verdict
from photofinish.config.compare import Comparing
from photofinish.errors import UserError
from photofinish.results.records import DeviceLabel

FIVE = (2.9, 3.0, 3.0, 3.0, 3.1)


def test_a_faster_gpu_is_said_to_be_faster_with_its_interval(make_result: MakeResult) -> None:
    gpu = make_result(device="gpu", epoch_seconds=(0.5,) * 5, total_seconds=20.0, device_name="Some GPU", accuracy=0.5)
    found = verdict(pair_of(make_result(epoch_seconds=FIVE), gpu))
    assert (found.experiment, found.missing) == ("small-mlp", None)
    assert (
        "Some GPU takes 500 ms for an epoch, Some CPU 3.00 s: 6.00 times the CPU's speed (95 % interval 5.52 to 6.51); "
        "the GPU is faster."
    ) in found.text
    assert "(20.0 s against 30.0 s): 1.50 times" in found.text
    assert "50.00% on the GPU, 75.00% on the CPU" in found.text


@pytest.mark.parametrize(
    ("gpu", "told"),
    [
        ((6.0,) * 5, ": 0.50 times the CPU's speed (95 % interval 0.46 to 0.54); the CPU is faster."),
        ((2.8, 2.9, 2.95, 3.05, 3.2), "); neither is faster, as far as can be told. A step"),
        (
            (0.01,) * 3,
            ": 300.00 times the CPU's speed; no winner is named without an interval (3 epochs, and it takes 5)",
        ),
    ],
)
def test_a_winner_is_named_where_the_interval_does_not_span_1(
    make_result: MakeResult, gpu: tuple[float, ...], told: str
) -> None:
    sentence = verdict(pair_of(make_result(epoch_seconds=FIVE), make_result(device="gpu", epoch_seconds=gpu))).text
    assert told in sentence
    assert ("is faster" in sentence.replace("neither is faster", "")) == ("the CPU is faster" in told)


@pytest.mark.parametrize(
    ("sha256", "told"),
    [
        ("c" * 64, "The models are different: they first part at the initial weights (they differ). Test accuracy"),
        ("a" * 64, "The models are identical. Test accuracy"),
    ],
)
def test_models_that_part_are_said_to_part_and_where(make_result: MakeResult, sha256: str, told: str) -> None:
    assert told in verdict(pair_of(make_result(), make_result(device="gpu", initial_weights_sha256=sha256))).text


def test_a_busy_machine_is_told_with_the_device_whose_times_it_spoils(make_result: MakeResult) -> None:
    sentence = verdict(pair_of(make_result(), make_result(device="gpu", load=(BUSY,)))).text
    assert "Take the GPU's times with care: other programs used 40% of the cores in 100% of the time; on a" in sentence
    assert "`dvc repro --force --single-item train-gpu@small-mlp` takes them anew." in sentence
    assert "Take the CPU's" not in sentence


def test_settings_that_repeat_no_bit_are_a_caution(make_result: MakeResult) -> None:
    result = make_result()
    record = result.record.model_copy(
        update={"experiment": result.record.experiment.model_copy(update={"deterministic": False})}
    )
    loose = verdict(pair_of(replace(result, record=record), make_result(device="gpu"))).cautions
    assert "deterministic is false: the same training would come to other bits the next time." in loose
    assert not any("deterministic" in told for told in verdict(pair_of(result, make_result(device="gpu"))).cautions)


def test_an_interrupted_training_and_another_machine_are_cautions(make_result: MakeResult) -> None:
    cpu, gpu = trained(make_result), trained(make_result, device="gpu")
    assert verdict(pair_of(cpu, gpu)).cautions == ()
    told = {"resumed_at_epochs": (1,), "host_name": "another bench"}
    other = with_timings(gpu, **told)
    assert verdict(pair_of(cpu, other)).cautions == (
        "A training was interrupted and resumed: its end-to-end time is the sum of its parts.",
        "They ran on different machines: workbench and another bench.",
    )


def test_what_was_measured_after_a_training_is_doubted_by_itself(make_result: MakeResult) -> None:
    found = verdict(pair_of(make_result(load=(QUIET, QUIET, BUSY)))).cautions
    assert found == (
        "Take what was measured after the CPU's training with care: other programs used 40% of the cores in 100% of "
        "the time.",
    )


def test_why_an_epoch_takes_so_long_comes_before_why_the_job_does(make_result: MakeResult) -> None:
    unknown = "why an epoch takes as long as it does is not known"
    alone = verdict(pair_of(make_result())).details
    assert not any(not told or "Why" in told for told in alone)
    short_job = make_result(attribution=made_up_attribution(0.05), total_seconds=4.0)
    (told,) = (told for told in verdict(pair_of(short_job)).details if told.startswith("Why it takes so long: "))
    assert told.startswith(f"Why it takes so long: {unknown}. ")
    assert told.endswith(" And start-up (imports, device, data, warm-up) is 62% of the whole job (start-up-bound).")
    beside = verdict(pair_of(make_result(), make_result(device="gpu", attribution=made_up_attribution(0.05)))).text
    assert f" What the GPU's epoch waits for: {unknown}. " in beside
    assert beside.count(unknown) == 1


def test_without_a_gpu_the_cpu_stands_alone_and_the_reason_is_kept(make_result: MakeResult) -> None:
    gpu = make_result(device="gpu", unavailable="no accelerator: cuda: no driver")
    found = verdict(pair_of(make_result(), gpu))
    assert (found.short, found.missing) == ("not there", "no accelerator: cuda: no driver")
    assert "Some CPU trained it to 75.00% test accuracy in 30.0 s, of which 2.50 s were start-up" in found.text
    assert "nothing can be said" in found.text


def test_without_the_cpus_result_there_is_nothing_to_compare_with(make_result: MakeResult, tmp_path: Path) -> None:
    write_results([make_result(unavailable="made up"), make_result(device="gpu")], tmp_path)
    with pytest.raises(UserError, match="small-mlp was not trained on the CPU"):
        read_pair("small-mlp", tmp_path / "small-mlp")


def test_under_other_settings_nothing_is_found_again_that_they_do_not_change(make_result: MakeResult) -> None:
    pair = pair_of(make_result(), make_result(device="gpu"))
    assert pair.compared
    (other,) = with_settings([pair], Comparing(target_accuracy=0.5), ())
    assert other.compared is pair.compared
    assert other.diagnoses is pair.diagnoses
    assert pair.outlays["cpu"].target is None
    assert other.outlays["cpu"].target


def test_the_answer_comes_first_in_one_sentence_by_the_whole_job(make_result: MakeResult) -> None:
    def job(device: DeviceLabel, epoch_seconds: float) -> DeviceResult:
        times = tuple(epoch_seconds + wobble for wobble in (0.0, 0.01, 0.02, 0.03, 0.04))
        return make_result(device=device, epoch_seconds=times, total_seconds=sum(times) + 1, repeats=(times,) * 5)

    quicker = verdict(pair_of(job("cpu", 6.0), job("gpu", 1.0)))
    assert quicker.answer.startswith("The GPU is worth it: it does the whole job at ")
    assert quicker.answer.endswith(", and the models are identical.")
    slower = verdict(pair_of(job("cpu", 1.0), job("gpu", 6.0)))
    assert slower.answer.startswith("The GPU is not worth it here: it does the whole job at 0.")
    assert slower.text.startswith(slower.answer)
    assert slower.answer.count(". ") == 0


def test_the_answer_is_of_the_epochs_where_the_whole_job_was_timed_once(make_result: MakeResult) -> None:
    found = verdict(pair_of(make_result(epoch_seconds=FIVE), make_result(device="gpu", epoch_seconds=(0.5,) * 5)))
    assert found.short == "faster epochs"
    assert found.answer.startswith("The GPU goes through an epoch at 6.00 times the CPU's speed (95 % interval 5.52")
    assert "of the whole job no winner is named (1 repeat, and it takes 5)" in found.answer
    slower = pair_of(make_result(epoch_seconds=(0.5,) * 5), make_result(device="gpu", epoch_seconds=FIVE))
    assert verdict(slower).short == "slower epochs"


@pytest.mark.parametrize(
    ("cpu", "gpu", "why"),
    [
        (FIVE, (2.8, 2.9, 2.95, 3.05, 3.2), "its interval spans 1"),
        ((3.0,) * 3, (3.0,) * 3, "3 epochs, and it takes 5"),
    ],
)
def test_where_no_winner_is_named_the_answer_is_that_with_the_reasons(
    make_result: MakeResult, cpu: tuple[float, ...], gpu: tuple[float, ...], why: str
) -> None:
    found = verdict(pair_of(make_result(epoch_seconds=cpu), make_result(device="gpu", epoch_seconds=gpu)))
    reasons = f"neither of an epoch ({why}) nor of the whole job (1 repeat, and it takes 5)"
    assert (found.short, found.answer) == ("no winner", f"No winner is named, {reasons}; the models are identical.")

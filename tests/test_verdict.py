"""The answer and its evidence, as users read them."""

from __future__ import annotations

from conftest import MakeResult
from result_files import (
    BUSY,
    QUIET,
    made_up_attribution,
    pair_of,
    trained,
    with_record,
    with_timings,
)

from photofinish.comparing.pairs import with_settings
from photofinish.config.compare import Comparing
from photofinish.reporting.sentences import verdict

FIVE = (2.9, 3.0, 3.0, 3.0, 3.1)


def test_a_gpus_times_stand_with_their_ratios_and_intervals(make_result: MakeResult) -> None:
    gpu = make_result(device="gpu", epoch_seconds=(0.5,) * 5, device_name="Some GPU", accuracy=0.5)
    answer = verdict(pair_of(make_result(epoch_seconds=FIVE), gpu))
    assert (answer.experiment, answer.missing) == ("small-mlp", None)
    assert (
        "An epoch takes 500 ms on Some GPU and 3.0 s on Some CPU: 6.0x faster (5.5 to 6.5); the "
        "GPU is faster."
    ) in answer.text
    assert "Test accuracy is 50.00% on the GPU and 75.00% on the CPU." in answer.text


def test_models_that_differ_are_reported_with_where(make_result: MakeResult) -> None:
    other = make_result(device="gpu", initial_weights_sha256="c" * 64)
    words = "The models first differ at the initial weights: they differ. Test accuracy"
    assert words in verdict(pair_of(make_result(), other)).text
    same = verdict(pair_of(make_result(), make_result(device="gpu")))
    assert "The models are identical." in same.text


def test_a_busy_machine_is_a_caution_for_the_device_that_it_slowed(make_result: MakeResult) -> None:
    busy = make_result(device="gpu", load=(BUSY,))
    text = verdict(pair_of(make_result(), busy)).text
    assert "The machine was busy (other programs used 40% of the cores" in text
    assert "the GPU's times are unreliable" in text
    assert "`photofinish run --force --single-item train-gpu@small-mlp && photofinish run`" in text
    (caution,) = verdict(pair_of(make_result(load=(QUIET, QUIET, BUSY)))).cautions
    assert "busy after the CPU's training" in caution


def test_doubtful_results_have_cautions(make_result: MakeResult) -> None:
    cpu, gpu = trained(make_result), trained(make_result, device="gpu")
    assert verdict(pair_of(cpu, gpu)).cautions == ()
    loose = cpu.record.experiment.model_copy(update={"deterministic": False})
    elsewhere = with_timings(gpu, resumed_at_epochs=(1,), host_name="another bench")
    cautions = verdict(pair_of(with_record(cpu, experiment=loose), elsewhere)).cautions
    for words in ("interrupted", "deterministic: false", "workbench and another bench"):
        assert sum(words in caution for caution in cautions) == 1


def test_the_epochs_cause_comes_before_the_jobs(make_result: MakeResult) -> None:
    assert not any("Why" in detail for detail in verdict(pair_of(make_result())).details)
    slow_start = trained(make_result, attribution=made_up_attribution(0.05), total_seconds=40.0)
    why = verdict(pair_of(with_timings(slow_start, startup_seconds=25.0))).details[-1]
    assert why.startswith("On the CPU, an epoch is likely input-bound, but steps are so slow")
    assert why.endswith(" And start-up is 62% of the job's 40 s.")


def test_without_a_gpu_and_a_bound_nothing_can_be_told(make_result: MakeResult) -> None:
    reason = "no accelerator: cuda: no driver"
    found = verdict(pair_of(make_result(), make_result(device="gpu", unavailable=reason)))
    assert found.decision.own.answer == "Can't tell"
    assert found.missing == "Nothing was trained on a GPU here (no accelerator: cuda: no driver)."
    assert found.answer == (
        "No (renting): the job takes 30 s, and a rented machine takes 5.0 min to start. "
        "If this machine had a GPU: can't tell, no GPU trained it. Start-up and loading limit "
        "it to 12x."
    )
    assert found.details[0] == (
        "Some CPU trained it to 75.00% test accuracy in 30 s, 2.5 s of it start-up."
    )


def test_other_settings_change_only_what_depends_on_them(make_result: MakeResult) -> None:
    pair = pair_of(make_result(), make_result(device="gpu"))
    (other,) = with_settings([pair], Comparing(target_accuracy=0.5), ())
    assert other.compared is pair.compared
    assert pair.uses["cpu"].target is None
    assert other.uses["cpu"].target


def test_the_main_score_is_the_users_first_metric_or_one_that_fits_the_task(
    make_result: MakeResult,
) -> None:
    scores = trained(make_result).scores
    own = scores.model_copy(update={"first_metric": "top_3", "metrics": {"auc": 0.5, "top_3": 0.9}})
    assert own.in_words == "top 3 0.9"
    labels = scores.model_copy(update={"confusion": ()})
    assert labels.figure == ("macro F1", "0.7")
    assert scores.in_words == "75.00% test accuracy"

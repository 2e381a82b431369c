"""Records of other machines: refused unless whole, shown only beside the same training, and never as measured here."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeResult
from result_files import BUSY, paired, trained, with_record, with_timings, write_result, write_scores

from photofinish.comparing.device_results import DeviceResult, Trained
from photofinish.comparing.pairs import ReferenceComparison, same_training
from photofinish.config.networks import CustomModel
from photofinish.errors import ConfigError, UserError
from photofinish.files import sha256_of_bytes, to_json
from photofinish.report.tables import elsewhere_table
from photofinish.results import references
from photofinish.results.references import (
    Reference,
    hardware,
    read_references,
    record_all,
    reference_of,
    write_reference,
)

FIVE = (3.0,) * 5
CODE = ("a1", "a2", "b1")
"""content of net.py, and version of a package"""
Make = Callable[..., Trained]


@pytest.fixture
def make(make_result: MakeResult) -> Make:
    return partial(trained, make_result)


@pytest.fixture
def gpu_elsewhere(make: Make) -> Trained:
    return make(device="gpu", epoch_seconds=(0.5,) * 5, device_name="NVIDIA Made-Up 100(TM)")


@pytest.fixture
def no_gpu(make_result: MakeResult) -> DeviceResult:
    return make_result(device="gpu", unavailable="no driver")


@pytest.fixture
def here(make_result: MakeResult) -> list[DeviceResult]:
    """A machine without a GPU."""
    cpu = make_result(epoch_seconds=FIVE)
    return [cpu, make_result(device="gpu", epoch_seconds=FIVE, unavailable="no driver")]


def recorded(result: Trained, machine: str | None = None) -> Reference:
    return reference_of(result.experiment, result.record, result.timings, result.scores, list(result.history), machine)


def elsewhere(here: list[DeviceResult], *references: Reference) -> list[ReferenceComparison]:
    return [found for pair in paired(here, None, references) for found in pair.elsewhere]


def with_settings(result: Trained, **settings: Any) -> Trained:
    experiment = result.record.experiment.model_copy(update=settings)
    return with_record(result, experiment=experiment)


# -- files ----------------------------------------------------------------------------------------------


def test_what_is_written_reads_back_without_the_hosts_name(gpu_elsewhere: Trained, tmp_path: Path) -> None:
    written = recorded(gpu_elsewhere)
    path = write_reference(tmp_path, written)
    assert path == tmp_path / "nvidia-made-up-100" / "small-mlp.gpu.json"
    assert read_references(tmp_path, "all") == [written]
    assert "workbench" not in path.read_text(encoding="utf-8")
    assert written.timings.epochs == gpu_elsewhere.timings.epochs
    assert [row.validation_loss for row in written.history] == [
        epoch.validation_loss for epoch in gpu_elsewhere.history
    ]


def test_variables_tell_no_folder_and_no_single_gpu(gpu_elsewhere: Trained) -> None:
    variables = {"LD_PRELOAD": "/home/jane/lib.so", "CUDA_VISIBLE_DEVICES": "GPU-1234", "OMP_NUM_THREADS": "4"}
    host = gpu_elsewhere.timings.host
    assert host.software is not None
    told = host.model_copy(update={"software": replace(host.software, variables=variables)})
    result = with_timings(gpu_elsewhere, host=told)
    software = recorded(result).timings.host.software
    assert software is not None
    assert software.variables == {"LD_PRELOAD": "(set)", "CUDA_VISIBLE_DEVICES": "(set)", "OMP_NUM_THREADS": "4"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda content: content["timings"].update(host_name="janes-laptop"), "it names the host it was recorded on"),
        (lambda content: content.update(schema_version=2), "its schema_version is 2, and this photofinish reads 1"),
        (lambda content: content["history"].pop(), "it lacks a loss or a time of an epoch"),
        (lambda content: content.update(machine="other"), "it belongs in other/small-mlp.gpu.json"),
        (lambda content: content.update(speed="great"), "Extra inputs are not permitted"),
        (lambda content: content.update(sha256="0" * 64), "its sha256 is not that of its content: it was damaged"),
    ],
)
def test_nonsense_is_refused_by_name(
    gpu_elsewhere: Trained, tmp_path: Path, change: Callable[[dict[str, Any]], Any], told: str
) -> None:
    path = write_reference(tmp_path, recorded(gpu_elsewhere))
    content = json.loads(path.read_text(encoding="utf-8"))
    sha256 = content.pop("sha256")
    change(content)
    sealed = {"sha256": sha256_of_bytes(to_json(content).encode())}  # it fits whatever was changed
    content = sealed | content
    assert content["sha256"] != sha256
    for text, problem in ((to_json(content), told), ("", "Expecting value"), ("[]", "it is no JSON object")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError) as caught:
            read_references(tmp_path, "all")
        assert str(path) in str(caught.value)
        assert problem in str(caught.value)


def test_only_the_chosen_machines_are_read(gpu_elsewhere: Trained, tmp_path: Path) -> None:
    for machine in ("one", "two"):
        write_reference(tmp_path, recorded(gpu_elsewhere, machine))
    (tmp_path / "README.md").touch()
    assert [found.machine for found in read_references(tmp_path, "all")] == ["one", "two"]
    assert [found.machine for found in read_references(tmp_path, ["two"])] == ["two"]
    assert read_references(tmp_path, "none") == read_references(tmp_path / "nowhere", "all") == []
    with pytest.raises(UserError, match=r"compare\.references names three; .* has no such folder \(one, two\)"):
        read_references(tmp_path, ["two", "three"])
    (tmp_path / "none-yet").mkdir()
    with pytest.raises(UserError, match=r"names three, four; .* has no such folder \(none\)"):
        read_references(tmp_path / "none-yet", ["three", "four"])


@pytest.mark.parametrize(
    ("device", "facts", "told"),
    [
        ("cpu", {"threads": 1}, "Some CPU, 1 thread"),
        ("cpu", {"threads": 4, "processes": 2}, "Some CPU, 2 processes of 4 threads"),
        ("gpu", {"device_count": 1}, "Some GPU"),
        ("gpu", {"device_count": 2}, "2 x Some GPU"),
    ],
)
def test_hardware_is_told_with_what_matters_to_its_speed(
    make: Make, device: str, facts: dict[str, Any], told: str
) -> None:
    timings = make(device=device, device_name=f"Some {device.upper()}").timings
    of_host = {key: value for key, value in facts.items() if key != "device_count"}
    host = timings.host.model_copy(update=of_host)
    of_run = {"host": host, "device_count": facts.get("device_count", 1)}
    assert hardware("cpu" if device == "cpu" else "gpu", timings.model_copy(update=of_run)) == told


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("Xeon(R) 8.5", "xeon-8_5-1-thread"),
        ("a" * 70, "a" * 64),
        ("a" * 63 + "_b", "a" * 63),
    ],
)
def test_a_machines_folder_is_named_after_its_hardware(make: Make, name: str, folder: str) -> None:
    assert recorded(make(device_name=name)).machine == folder


# -- beside this machine's results ------------------------------------------------------------------------


def test_the_same_training_elsewhere_is_labelled_and_compared_with_this_cpu(
    here: list[DeviceResult], gpu_elsewhere: Trained
) -> None:
    (found,) = elsewhere(here, recorded(gpu_elsewhere))
    assert found.against_cpu.ratio == 6.0
    (row,) = elsewhere_table(paired(here, None, [recorded(gpu_elsewhere)]))
    assert row["recorded elsewhere"] == "2023-11-14 (nvidia-made-up-100)"
    assert row["of this CPU's speed"] == "6.00x"


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        ({}, True),
        ({"dataset": "called-otherwise"}, True),
        ({"repeats": 5}, True),
        ({"batch_size": 17}, False),
        ({"seed": 1}, False),
        ({"precision": "bf16"}, False),
        ({"save_weights": "every_epoch"}, False),
    ],
)
def test_what_must_be_the_same_for_a_reference_to_be_shown(
    here: list[DeviceResult], gpu_elsewhere: Trained, settings: dict[str, Any], same: bool
) -> None:
    assert bool(elsewhere(here, recorded(with_settings(gpu_elsewhere, **settings)))) is same
    record = gpu_elsewhere.record
    code = [
        record.model_copy(update={"custom_code": {"net.py": net, "package torch": version}}) for net, version in CODE
    ]
    assert [same_training(code[0], each) for each in code] == [True, True, False]
    for field in ("data_sha256", "published_weights_sha256"):
        assert not same_training(record, record.model_copy(update={field: "e" * 64}))


def test_a_record_tells_no_folder_outside_of_the_project_and_is_of_the_same_training_still(
    gpu_elsewhere: Trained, tmp_path: Path
) -> None:
    code = {"net.py": "a", "../jane/lib/layers.py": "b", "package torch": "2"}
    vocabulary = {"vocabulary": "~jane/words.txt", "further": "file:///home/jane/more.txt"}
    model = CustomModel.model_validate({"name": "/home/jane/net.py:Net", **vocabulary, "depth": 2})
    mine = with_settings(gpu_elsewhere, model=model)
    mine = with_record(mine, custom_code=code)
    written = recorded(mine)
    path = write_reference(tmp_path, written)
    assert "jane" not in path.read_text(encoding="utf-8")
    assert written.training.custom_code == {"net.py": "a", "b": "b", "package torch": "2"}
    assert written.training.experiment.model.model_dump(exclude_defaults=True) == {
        "name": "net.py:Net",
        "vocabulary": "words.txt",
        "further": "more.txt",
        "depth": 2,
    }
    assert same_training(read_references(tmp_path, "all")[0].training, mine.record)
    other = mine.record.model_copy(update={"custom_code": code | {"../jane/lib/layers.py": "c"}})
    assert not same_training(written.training, other)


def test_a_record_of_hardware_that_is_here_is_not_called_elsewhere(
    here: list[DeviceResult], make: Make, gpu_elsewhere: Trained
) -> None:
    assert elsewhere(here, recorded(make(epoch_seconds=FIVE))) == []
    assert elsewhere([here[0], gpu_elsewhere], recorded(gpu_elsewhere)) == []


# -- recording --------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Reference]]:
    """Results and a plan on disk; records them and gives what was recorded."""
    monkeypatch.setattr("platform.node", lambda: "workbench")

    def record(*results: DeviceResult, machine: str | None = None) -> list[Reference]:
        for result in results:
            write_result(tmp_path / "results", result)
            if isinstance(result, Trained):
                write_scores(tmp_path / "results", result)
        plan = tmp_path / "plan"
        plan.mkdir()
        for name in {result.experiment for result in results}:
            (plan / f"{name}.json").touch()
        record_all(plan, tmp_path / "results", tmp_path / "reference", machine)
        return read_references(tmp_path / "reference", "all")

    return record


def test_beside_a_doubtful_result_and_one_that_never_was_the_others_are_recorded(
    project: Callable[..., list[Reference]], make: Make, make_result: MakeResult, capsys: pytest.CaptureFixture[str]
) -> None:
    resumed = make("a")
    resumed = with_timings(resumed, resumed_at_epochs=(2,))
    last = make("c")
    busy = replace(
        last, timings=last.timings.model_copy(update={"load": (BUSY.model_copy(update={"major_page_faults": 10_000}),)})
    )
    none = [make_result(name, "gpu", unavailable="no driver") for name in "abc"]
    moved = with_timings(make("d"), host_name="elsewhere")
    none.append(make_result("d", "gpu", unavailable="no driver"))
    (recorded,) = project(resumed, make_result("b", "cpu", unavailable="no"), busy, moved, *none)
    assert (recorded.experiment, recorded.photofinish_version) == ("c", metadata.version("photofinish"))
    printed = capsys.readouterr().out
    assert "a on cpu: not recorded: the training was interrupted and resumed" in printed
    assert "d on cpu: not recorded: it was measured on another machine" in printed
    assert re.search(r"c on cpu: .*json; to be taken with care: other programs .* care: memory was", printed)


def test_the_command_records_the_projects_results_or_those_of_the_folders_it_is_given(
    project: Callable[..., list[Reference]],
    make: Make,
    make_result: MakeResult,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    of_gpu = make("last", "gpu", device_name="Some GPU")
    none = [make_result(name, device, unavailable="no") for name, device in (("small-mlp", "gpu"), ("last", "cpu"))]
    project(make(), of_gpu, *none)
    assert "Recorded 2. Check them" in capsys.readouterr().out
    before = {path.name for path in (tmp_path / "reference").rglob("*.json")}
    (tmp_path / "data/plan").mkdir(parents=True)
    (tmp_path / "plan").rename(tmp_path / "data/plan/experiments")
    shutil.rmtree(tmp_path / "reference")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["references"])
    references.main()
    assert {path.name for path in (tmp_path / "reference").rglob("*.json")} == before
    plan = (tmp_path / "data/plan/experiments").rename(tmp_path / "elsewhere")
    (tmp_path / "results").rename(tmp_path / "told")
    given = ["--plan", plan.name, "--results", "told", "--out", "out", "--machine", "mine"]
    monkeypatch.setattr("sys.argv", ["references", *given])
    references.main()
    assert {path.name for path in (tmp_path / "out" / "mine").iterdir()} == before


def test_without_results_it_is_said_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no experiments: run `dvc repro` first"):
        record_all(tmp_path / "plan", tmp_path, tmp_path, None)
    with pytest.raises(ConfigError, match=r"--machine \.\./x: a name is"):
        record_all(tmp_path, tmp_path, tmp_path, "../x")

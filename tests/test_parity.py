"""Whether two devices learned the same: real trainings that differ in one thing, and what is made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import MakeExperiment, MakeResult, MakeTrainer
from result_files import changed_history, trained, with_record
from torch import nn

from photofinish.comparing.device_results import Predictions, Trained
from photofinish.comparing.parity import Parity, mcnemar_p_value, parity
from photofinish.config.networks import CnnModel, TorchvisionModel
from photofinish.data.packed import PackedSplit
from photofinish.files import sha256_of_bytes
from photofinish.models.registry import build_model
from photofinish.profiling.first_step import first_batch, first_step
from photofinish.results.learned import weights_of
from photofinish.training.optimisation import Loss
from photofinish.training.torch_device import CPU
from photofinish.training.world import World

Learn = Callable[..., Trained]


@pytest.fixture
def learn(
    make_experiment: MakeExperiment, make_trainer: MakeTrainer, make_result: MakeResult, packed_split: PackedSplit
) -> Learn:
    """A real training on the CPU: its record says what `says` says, whatever was really done."""

    def one(
        change: Callable[[nn.Module], None] = lambda _network: None,
        says: dict[str, object] | None = None,
        threads: int = 1,
        **settings: object,
    ) -> Trained:
        experiment = make_experiment(**{"batch_size": 8, **settings})
        networks = [build_model(experiment.model, (1, 8, 8), 3, experiment.seed) for _ in range(2)]
        for network in networks:
            change(network)
        initial_sha256 = sha256_of_bytes(weights_of(networks[0]))
        trainer = make_trainer(experiment, networks[0])
        torch.set_num_threads(threads)
        batch = first_batch(trainer.training, World(CPU))
        assert batch is not None
        labels = packed_split.labels("train")
        start = first_step(networks[1], trainer.criterion, batch, CPU, experiment.precision, labels, experiment.seed)
        history = [each[0] for each in trainer.epochs()]
        made_up = trained(make_result)
        images = (torch.from_numpy(packed_split.images("test").copy()).float() / 255 - 0.25) / 0.25
        with torch.inference_mode():
            predicted = trainer.network.eval()(images).argmax(1).numpy()
        told = {"experiment": make_experiment(**{"batch_size": 8, **(settings if says is None else says)})}
        record = made_up.record.model_copy(
            update={
                **told,
                "precision": told["experiment"].precision,
                "initial_weights_sha256": initial_sha256,
                "weights_sha256": sha256_of_bytes(weights_of(trainer.network)),
            }
        )
        predictions = Predictions(np.asarray(packed_split.labels("test")), predicted)
        return replace(made_up, record=record, history=history, first_step=start, predictions=predictions)

    return one


def parting(found: Parity) -> tuple[str, str]:
    assert found.likeness == "different"
    assert found.first_divergence is not None
    return found.first_divergence.name, found.first_divergence.finding


def test_the_same_training_twice_is_identical(learn: Learn) -> None:
    found = parity(learn(), learn())
    assert found.likeness == "identical"
    assert found.first_divergence is None
    assert {layer.finding for layer in found.layers if layer.name != "test accuracy"} == {"the same"}


def test_other_rounding_is_equivalent(learn: Learn) -> None:
    """Weights moved by a millionth stand for another device's rounding; the record says that they are the same."""
    cpu = learn()
    other = learn(lambda network: [parameter.data.mul_(1 + 1e-6) for parameter in network.parameters()] and None)
    record = other.record.model_copy(update={"initial_weights_sha256": cpu.record.initial_weights_sha256})
    found = parity(cpu, replace(other, record=record))
    assert found.likeness == "equivalent within rounding"
    assert "largest relative difference" in next(layer.finding for layer in found.layers if layer.name == "loss curves")


def test_another_thread_count_is_never_called_different(learn: Learn) -> None:
    assert parity(learn(threads=1), learn(threads=2)).likeness != "different"


def test_a_changed_initial_weight_is_found_and_its_layer_named(learn: Learn) -> None:
    def change(network: nn.Module) -> None:
        network.get_parameter("3.bias").data[1] += 1e-3

    name, finding = parting(parity(learn(), learn(change)))
    assert name == "initial weights"
    assert "parts at 3.bias" in finding


@pytest.mark.parametrize(("at", "module"), [(1, "1"), (3, "3")])
def test_a_layer_that_computes_something_else_is_named(learn: Learn, at: int, module: str) -> None:
    class Wrong(nn.Linear):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images) * 1.001

    def change(network: nn.Module) -> None:
        network[at].__class__ = Wrong  # type: ignore[index]

    name, finding = parting(parity(learn(), learn(change)))
    assert name == "first forward"
    assert f"parts at {module}:" in finding


def test_a_wrong_gradient_parts_at_the_first_gradient(learn: Learn) -> None:
    def change(network: nn.Module) -> None:
        network.get_parameter("1.weight").register_hook(lambda gradient: gradient * 1.05)

    name, finding = parting(parity(learn(), learn(change)))
    assert name == "first gradient"
    assert "parts at 1.weight" in finding


def test_bf16_called_fp32_parts_at_the_first_forward(learn: Learn) -> None:
    assert parting(parity(learn(), learn(precision="bf16", says={})))[0] == "first forward"


def test_another_learning_rate_called_the_same_parts_at_the_loss_curves(learn: Learn) -> None:
    optimizer = {"name": "sgd", "lr": 0.12, "momentum": 0.9}
    name, finding = parting(parity(learn(), learn(optimizer=optimizer, says={})))
    assert name == "loss curves"
    assert "above 0.01 from epoch 1 on" in finding


def test_curves_that_drift_apart_later_are_told_but_are_no_difference(learn: Learn) -> None:
    cpu = learn()
    losses = [epoch.training_loss * factor for epoch, factor in zip(cpu.history, (1, 1.0001, 1.02), strict=True)]
    drifted = changed_history(cpu, training_loss=losses)
    found = parity(cpu, replace(cpu, history=drifted))
    assert found.likeness == "equivalent within rounding"
    curves = next(layer for layer in found.layers if layer.name == "loss curves")
    assert curves.finding == "largest relative difference 0.02, in epoch 3; above 0.01 from epoch 3 on"


def cnn() -> nn.Module:
    model = CnnModel(name="cnn", channels=(32, 64, 128))
    return build_model(model, (3, 32, 32), 10, seed=0)


def biased() -> nn.Module:
    """Convolutions with a bias before BatchNorm, whose gradient is rounding noise."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def resnet(depth: int) -> nn.Module:
    return build_model(TorchvisionModel(name=f"resnet{depth}"), (3, 32, 32), 10, seed=0)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "cnn": cnn,
    "bias before BatchNorm": biased,
    "resnet18": lambda: resnet(18),
    "resnet50": lambda: resnet(50),
}
Step = Callable[..., Trained]


@pytest.fixture
def step(make_result: MakeResult) -> Step:
    """Made-up results in which the first step alone is real, on 32 images."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(32, 3, 32, 32, generator=generator)
    targets = torch.randint(0, 10, (32,), generator=generator)

    def one(network: nn.Module, precision: str = "fp32") -> Trained:
        labels = targets.numpy()
        taken = first_step(network, Loss(None, "classes", CPU), (images, targets), CPU, precision, labels, seed=0)
        return replace(trained(make_result), first_step=taken.model_copy(update={"weights": {}}))

    return one


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
@pytest.mark.parametrize(("name", "precision"), [*((name, "fp32") for name in NETWORKS), ("resnet18", "bf16")])
def test_convolutions_of_another_library_are_equivalent(step: Step, name: str, precision: str) -> None:
    build = NETWORKS[name]
    with_onednn = step(build(), precision)
    with torch.backends.mkldnn.flags(enabled=False):
        without = step(build(), precision)
    found = parity(with_onednn, without)
    assert (found.likeness, found.first_divergence) == ("equivalent within rounding", None)


def wrong_weight(network: nn.Module) -> None:
    weight = next(module.weight for module in network.modules() if isinstance(module, nn.Conv2d))
    weight.data[3, 1, 0, 0] += 0.05


def swapped_classes(network: nn.Module) -> None:
    last = [module for module in network.modules() if isinstance(module, nn.Linear)][-1]
    last.register_forward_hook(lambda _module, _inputs, output: output[:, [1, 0, *range(2, 10)]])


def tf32(network: nn.Module) -> None:
    """Round what convolutions and linear layers multiply to TF32's 10 bits of mantissa."""

    def rounded(values: torch.Tensor) -> torch.Tensor:
        bits = values.detach().contiguous().view(torch.int32)
        short = ((bits + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)
        return values + (short - values).detach()

    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.weight.data = rounded(module.weight.data)
            module.register_forward_pre_hook(lambda _module, inputs: (rounded(inputs[0]),))


def another_seed(network: nn.Module) -> None:
    torch.manual_seed(5)
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.reset_parameters()


def another_normalisation(network: nn.Module) -> None:
    network.register_forward_pre_hook(lambda _module, inputs: (inputs[0] * 1.02 + 0.01,))


CHANGES = [wrong_weight, swapped_classes, another_normalisation, tf32, another_seed]


@pytest.mark.parametrize("name", ["cnn", "bias before BatchNorm", "resnet18"])
def test_what_rounding_does_not_explain_is_different(step: Step, name: str) -> None:
    """The first forward pass shows it, also without the fingerprints of weights and images."""
    right = step(NETWORKS[name]())
    for change in CHANGES:
        network = NETWORKS[name]()
        change(network)
        assert parting(parity(right, step(network)))[0] == "first forward", change.__name__


def table(found: Parity) -> dict[str, tuple[str, bool, bool]]:
    return {layer.name: (layer.finding, layer.same, layer.within_rounding) for layer in found.layers}


def stepped(run: Trained, **changed: object) -> Trained:
    return replace(run, first_step=run.first_step.model_copy(update=changed))


ALIKE = ("the same", True, True)


def test_what_rounding_explains_is_told_layer_by_layer_with_how_far_it_goes(make_result: MakeResult) -> None:
    cpu = trained(make_result)
    actual, predicted = cpu.predictions.actual, np.array([0, 0, 0, 1, 1, 1, 1, 1])
    gpu = stepped(with_record(cpu, weights_sha256="c" * 64), outputs={"1": (8.0, 1.0), "3": (3.0, 2.00003)})
    history = changed_history(cpu, training_loss=(1.0, 0.502, 1 / 3))
    found = parity(cpu, replace(gpu, history=history, predictions=Predictions(actual, predicted)))
    told = "75.00% on the CPU, 87.50% on the GPU; McNemar's exact p = 1"
    assert (found.likeness, found.mcnemar_p, found.first_divergence) == ("equivalent within rounding", 1.0, None)
    assert table(found) == {
        "settings": ALIKE,
        "data": ALIKE,
        "initial weights": ALIKE,
        "batch order": ALIKE,
        "first batch": ALIKE,
        "first forward": ("largest relative difference 1e-05", False, True),
        "first gradient": ALIKE,
        "loss curves": ("largest relative difference 0.004, in epoch 2", False, True),
        "test predictions": ("another class for 1 of 8 images", False, True),
        "test accuracy": (told, False, True),
        "final weights": ("differ in their bits", False, True),
    }
    assert parity(cpu, cpu).mcnemar_p == 1.0
    same = table(parity(cpu, cpu))
    assert list(same) == list(table(found))
    assert same.pop("test accuracy") == (told.replace("87.50", "75.00"), True, True)
    assert set(same.values()) == {ALIKE}


PARTED: dict[str, tuple[Callable[[Trained], Trained], str]] = {
    "settings": (
        lambda run: with_record(run, experiment=run.record.experiment.model_copy(update={"seed": 3})),
        "the experiments' settings differ",
    ),
    "data": (lambda run: with_record(run, data_sha256="e" * 64), "they trained on different data"),
    "initial weights": (lambda run: with_record(run, initial_weights_sha256="e" * 64), "they differ"),
    "batch order": (lambda run: stepped(run, batch_order_sha256="e" * 64), "the order differs"),
    "first batch": (lambda run: stepped(run, first_batch_sha256="e" * 64), "images or labels differ"),
    "first forward": (lambda run: stepped(run, loss=0.8), "parts at the loss: a relative difference of 0.1"),
    "first gradient": (
        lambda run: stepped(run, gradients=run.first_step.gradients | {"3.weight": (0.25, -0.2)}),
        "parts at 3.weight: a relative difference of 2",
    ),
    "loss curves": (
        lambda run: replace(run, history=changed_history(run, training_loss=(1.2, 0.5, 1 / 3))),
        "largest relative difference 0.2, in epoch 1; above 0.01 from epoch 1 on",
    ),
}


@pytest.mark.parametrize(("name", "change", "finding"), [(name, *each) for name, each in PARTED.items()], ids=PARTED)
def test_what_no_rounding_explains_is_named_and_nothing_else(
    make_result: MakeResult, name: str, change: Callable[[Trained], Trained], finding: str
) -> None:
    cpu = trained(make_result)
    found = parity(cpu, change(cpu))
    assert parting(found) == (name, finding)
    others = {layer: told for layer, told in table(found).items() if layer not in (name, "test accuracy")}
    assert set(others.values()) == {ALIKE}


def test_a_difference_is_relative_to_the_larger_norm_where_there_is_one(make_result: MakeResult) -> None:
    cpu = trained(make_result)
    runs = [stepped(cpu, gradients={"3.weight": (8.0, 1.0)}), stepped(cpu, gradients={"3.weight": (4.0, 1.0)})]
    for first, second in (runs, runs[::-1]):
        finding = "parts at 3.weight: a relative difference of 0.5"
        assert parting(parity(first, second)) == ("first gradient", finding)
    tiny = [stepped(cpu, gradients={"3.weight": (0.0, total)}) for total in (1e-200, 2e-200)]
    assert table(parity(*tiny))["first gradient"] == ALIKE
    none = stepped(cpu, gradients={})
    assert table(parity(none, none))["first gradient"] == ALIKE


def test_a_part_or_an_epoch_that_only_one_has_is_named(make_result: MakeResult) -> None:
    cpu = trained(make_result)
    fewer = parity(cpu, stepped(cpu, outputs={"1": (8.0, 1.0)}))
    assert table(fewer)["first forward"] == ("only one has 3", False, False)
    shorter = parity(cpu, replace(cpu, history=cpu.history[:2]))
    assert table(shorter)["loss curves"] == ("3 epochs and 2", False, False)


def test_values_are_held_together_by_how_far_they_are_off(make_result: MakeResult) -> None:
    made_up, actual = trained(make_result), np.array([0.0, 7.0, 2.0, 7.0])
    cpu = replace(with_record(made_up, task="values"), predictions=Predictions(actual, actual))
    gpu = replace(cpu, predictions=Predictions(actual, actual + np.array([0.004, 0.0, 0.0, 0.0])))
    layers = table(parity(cpu, gpu))
    assert layers["test predictions"] == ("they differ by 0.002 of the spread of a value, in the mean", False, True)
    assert layers["test error"] == ("mean absolute error 0 on the CPU, 0.001 on the GPU", False, True)
    two = with_record(cpu, class_names=("width", "height"))  # of which the second is the same for all
    off = replace(two, predictions=Predictions(actual, actual + np.array([0.0, 0.004, 0.0, 0.004])))
    told = "they differ by 0.004 of the spread of a value, in the mean"
    assert table(parity(two, off))["test predictions"] == (told, False, True)
    assert table(parity(gpu, gpu))["test predictions"] == ALIKE
    other = parity(cpu, replace(cpu, predictions=Predictions(actual + 1, actual)))
    assert table(other)["test predictions"] == ("of different test items", False, False)
    told = "mean absolute error 0 on the CPU, 1 on the GPU, of different test items"
    assert table(other)["test error"] == (told, False, False)


def predictions(*hits: bool) -> Predictions:
    return Predictions(np.zeros(len(hits), int), 1 - np.array(hits, int))


@pytest.mark.parametrize(
    ("only_first", "only_second", "p_value"),
    [
        *[(0, 0, 1.0), (3, 3, 1.0), (0, 1, 1.0), (2000, 2000, 1.0)],
        *[(0, 6, 2 * 0.5**6), (1, 9, 2 * 11 / 1024), (9, 1, 2 * 11 / 1024)],
    ],
)
def test_mcnemars_exact_p_is_that_worked_out_by_hand(only_first: int, only_second: int, p_value: float) -> None:
    first = predictions(*[True] * only_first, *[False] * only_second, True, True, False)
    second = predictions(*[False] * only_first, *[True] * only_second, True, True, False)
    assert mcnemar_p_value(first, second) == pytest.approx(p_value)


def test_significantly_other_predictions_part_at_the_test_accuracy(learn: Learn) -> None:
    cpu = learn()
    worse, better = predictions(*[False] * 6, True), predictions(*[True] * 7)
    found = parity(replace(cpu, predictions=worse), replace(cpu, predictions=better))
    assert parting(found)[0] == "test accuracy"
    assert found.mcnemar_p == pytest.approx(0.03125)
    assert next(layer.finding for layer in found.layers if layer.name == "test predictions") == (
        "another class for 6 of 7 images"
    )


def test_predictions_of_other_images_are_not_compared(make_result: MakeResult) -> None:
    cpu = trained(make_result)
    others = Predictions(cpu.predictions.actual[1:], cpu.predictions.predicted[1:])
    found = parity(cpu, replace(cpu, predictions=others))
    assert parting(found) == ("test predictions", "of different test images")
    told = "75.00% on the CPU, 71.43% on the GPU, of different test images"
    assert table(found)["test accuracy"] == (told, False, False)
    assert found.mcnemar_p is None


def test_of_several_labels_an_image_counts_once(make_result: MakeResult) -> None:
    made_up = trained(make_result)
    labelled = with_record(made_up, task="labels")
    actual = np.array([1, 0] * 8)
    right, wrong = Predictions(actual, actual), Predictions(actual, np.array([0, 1, 0, 0] * 4))  # of both; of one label
    first, others = predictions(*[True] * 8), predictions(*[False] * 8)
    assert mcnemar_p_value(right, wrong, 2) == mcnemar_p_value(first, others) == 2 / 2**8
    cpu, gpu = (replace(labelled, predictions=each) for each in (right, wrong))
    found = parity(cpu, gpu)
    assert found.mcnemar_p == 2 / 2**8
    assert table(found)["test predictions"] == ("other labels for 8 of 8 images", False, True)

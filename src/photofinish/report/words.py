"""Every sentence of the report that isn't a finding of one experiment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from photofinish.report.sentences import Verdict

TITLE = "Is the GPU worth it?"
INTRODUCTION = "Each device trains the same network on the same data, from the same seed, with the same trainer."
OVERVIEW = (
    "A name leads to the details. Speed-ups are the GPU's: 2x is half the time. With ≤ no GPU exceeds the figure."
)
NOT_SHOWN = "Details of the first {shown} experiments follow. All figures of all {all} are in the CSV files."
TRY = "Try it on a copy of the project. The second command is a quick trial of three epochs."
CUT_OFF = "The rest is on the page and in comparison.csv."
FOOTER = (
    "Made by photofinish. The folder of this page has every figure: comparison.csv, history.csv with every epoch, "
    "and comparison.md for a pull request."
)
SECTIONS = {
    "Speed-ups": "The CPU's time over the GPU's. Where the interval spans 1, or there is none, no winner is named.",
    "What no GPU can shorten": "Upper bounds: no GPU in this machine exceeds them, and a real one may fall well short.",
    "Which to rent": "Bounds by data sheets, and current prices. A real GPU takes longer and costs more.",
    "Why": "What an epoch, or the whole job, mostly waits for.",
    "Is it the same model?": "What was compared, from the start of the training to its end.",
    "Several seeds": "How much chance changes the result.",
    "When does it pay?": "",
    "Recorded elsewhere": "Measured on other machines.",
    "Figures": "",
}
"""The tables of an experiment's details, in their order, with what stands below each heading."""

HOW_MEASURED = {
    "Times": (
        "An epoch is timed from its first batch to its last weight update. The clock waits for the device at both "
        "ends. Validation, logging and checkpoints are not included. A warm-up goes first and leaves the network "
        "unchanged. A step is timed after the training, on a copy of the network, with one batch that is on the device "
        "already. Results repeat bit for bit: deterministic operations, no search by cuDNN, no TF32 unless you ask "
        "for it."
    ),
    "Speed-ups": (
        "A speed-up is the ratio of two medians. Its interval comes from the bootstrap, over epochs, samples of the "
        "step, or repeats. Both ends are moved by another 5 % for what a whole run may be off, or by a factor of 2 "
        "on a busy machine. There is no interval with fewer than five values, or end to end where most of the time "
        "is start-up, which happened once."
    ),
    "Bounds": (
        "Loading and start-up stay on the CPU, whichever GPU computes. The bound is what the job would take if all "
        "else took no time. Only what is sure to stay counts: loading as fast as the fastest tenth of batches, less "
        "a fifth, and half of the start-up without its warm-up."
    ),
    "Renting": (
        "One step's operations and bytes are counted. Each convolution and matrix product takes at least its "
        "operations at the peak rate and a quarter more, or its bytes at the memory's rate, or half a microsecond. "
        "None of 99 published training speeds exceeds this bound, and half reach less than 14 % of it. An estimate "
        "is given for steps of 30 ms or more: nine in ten lie within a factor of 1.44."
    ),
    "Causes": (
        "After the training a few steps are taken apart, with the clock waiting after each part. Then batches are "
        "loaded without steps, and steps run without loading, with two batch sizes. An epoch waits for the slower "
        "of the two. The part of a step that does not grow with its batch is the cost of launching operations."
    ),
    "Care": (
        "Figures are marked where other programs used over a tenth of the cores, the training's threads waited "
        "for a core, memory was swapped, or the GPU lowered its clock for heat or power."
    ),
    "Models": (
        "Settings, data, initial weights, batch order, first batch, first forward and backward pass, the losses, and "
        "the test predictions are compared. The CPU judges the test images for every device, in double "
        "precision. Identical is bit for bit. Equivalent within rounding is the same start, a first step as "
        "close as the precision allows, and no significant difference in the end (McNemar's exact test, p of 0.05 or "
        "more)."
    ),
}


def counts(verdicts: Sequence[Verdict]) -> str:
    """Return how often each answer was found: `40 experiments. The GPU: not worth it 38, worth it 2.`"""
    found = Counter(each.short for each in verdicts).most_common()
    answers = ", ".join(f"{short} {count}" for short, count in found)
    return f"{len(verdicts)} experiment{'' if len(verdicts) == 1 else 's'}. The GPU: {answers}."

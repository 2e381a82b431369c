"""The words of the report: shown where one points at a table's heading, and in a list of their own."""

from __future__ import annotations

GLOSSARY = {
    "step (median)": "one batch through the network and back, and the weights changed by it; its data at hand",
    "epoch (median)": "once through all training images, loading included; validation isn't in it",
    "images/s": "training images over the median epoch",
    "start-up": "from the start of the program to the first timed step: imports, data, warm-up",
    "total": "the whole job: start-up, every epoch with its validation, checkpoints",
    "between epochs": "what the loop spent on display, checkpoints and MLflow, and that against its timed passes",
    "speed-up": "the CPU's time over the GPU's: 2 is half the time, and below 1 the GPU is slower",
    "95 % interval": "measured again, the figure would be in here 19 times in 20; one that spans 1 names no winner",
    "95 % interval of it": "of the mean over all seeds there are: measured again, it would be in here 19 times in 20",
    "between two seeds": "how far the same training ends from itself when only chance differs",
    "cause": "what an epoch, or the job, mostly waits for",
    "predicted gain": "how many times as fast the remedy should make it, tried on some steps or worked out",
    "sure to stay": "of the time, what even a GPU that takes no time would leave on the CPU of this machine",
    "a GPU at most (bound)": "no GPU in this machine is faster; how near one comes isn't known",
    "fits": "no is sure: a step holds more than the memory; yes leaves room for half as much again as was kept here",
    "a step at least": "by the data sheet; in brackets what holds it: arithmetic, memory, kernels that start, the link",
    "an epoch at most": "so many times as fast as the CPU's, in this machine; a bound, which no PyTorch program beats",
    "the job at least": "with the start-up and loading that are sure to stay on this machine's CPU; a bound",
    "an hour": "of a whole machine: your price, or the lowest that is listed, with its day",
    "McNemar's test": "whether one of two networks is right more often, on the same images, than chance explains",
    "repaid": "a GPU starts later; from so many epochs on its shorter ones have made up for that",
    "to be taken with care": "the machine was busy with other things, or the GPU held its clock down",
}

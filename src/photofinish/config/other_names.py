"""Names of settings in other trainers, and the keys that replace them here."""

from __future__ import annotations

_SAME: dict[str, tuple[str, ...]] = {
    "clip_grad_norm: 1.0": ("grad_clip", "gradient_clip_val", "max_grad_norm", "clip_grad"),
    "accumulate: 4, the number of parts of a batch": (
        "accumulate_grad_batches", "gradient_accumulation_steps", "accumulation_steps",
    ),
    "warmup_steps: 500": ("warmup", "warmup_ratio", "warmup_epochs", "num_warmup_steps"),
    "ema: 0.999, the decay": ("model_ema", "ema_decay", "use_ema"),
    "early_stopping: {patience: 5}": ("patience", "early_stop"),
    "sampler: balanced": ("weights", "balanced", "class_balance", "weighted_sampler"),
    "batch_transform: MixUp, or CutMix": ("mixup", "cutmix", "mixup_alpha", "cutmix_alpha"),
    "optimizer: {lr: 0.1}": ("lr", "learning_rate"),
    "optimizer: {weight_decay: 0.01}": ("weight_decay",),
    "optimizer: {momentum: 0.9}": ("momentum",),
    "epochs": ("max_epochs", "num_epochs", "num_train_epochs", "n_epochs"),
    "schedule": ("scheduler", "lr_scheduler"),
    "loss": ("criterion", "loss_fn"),
    "model": ("network", "net"),
    "precision: bf16, or fp16": ("amp", "mixed_precision"),
    "input: {name: loader, workers: 2}": ("num_workers", "workers", "pin_memory"),
    "cuda_graphs": ("steps",),
    "model: {compile: true}": ("compile",),
    "devices.gpu.count": ("devices", "gpus", "num_gpus", "n_gpu"),
    "devices.gpu.strategy": ("strategy",),
    "devices.gpu.kind": ("accelerator", "device"),
    "save_weights: every_epoch": ("enable_checkpointing", "save_top_k", "save_every"),
}  # fmt: skip
"""Settings here, and their names in other trainers."""
_NOT_HERE: dict[str, tuple[str, ...]] = {
    "freeze layers in the network (requires_grad_(False)), or in a custom optimizer": ("freeze",),
    "there are no callbacks: a custom step sees each batch": ("callbacks",),
    "a training ends after epochs, or by early_stopping": ("max_steps", "max_time", "min_epochs"),
    "name a smaller data set instead: a part of one is another job": (
        "limit_train_batches", "overfit_batches",
    ),
    "set epochs: 1 to try a training": ("fast_dev_run",),
    "validation follows each epoch": ("val_check_interval", "check_val_every_n_epoch"),
    "MLflow logs every run: photofinish ui": ("logger",),
    "MLflow logs each epoch: logging a step would disturb its time": ("log_every_n_steps",),
    "every training is measured before its first epoch: read the report": ("profiler",),
    "cudnn.benchmark stays off, since its choice changes bits from run to run": ("benchmark",),
    "a loss that is not finite ends the training with the step's number": ("detect_anomaly",),
    "BatchNorm is synchronised wherever several GPUs train": ("sync_batchnorm",),
    "one machine trains an experiment: docs/scaling.md": ("num_nodes",),
}  # fmt: skip
"""What to do instead of settings that are not here, and their names in other trainers."""


def hint(name: str) -> str | None:
    """Return a hint about a setting of other trainers, or None if the name is not known."""
    for table, verb in ((_SAME, "write "), (_NOT_HERE, "")):
        for instead, names in table.items():
            if name in names:
                return f"unknown key; {verb}{instead}"
    return None

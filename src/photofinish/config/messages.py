"""Messages about refused settings. No stage reads this file: a reworded message reruns nothing."""

from __future__ import annotations

from photofinish.errors import SettingError
from photofinish.wording import unknown_name

SIZES = "a fraction between 0 and 1, or a count of at least 1"
_UNKNOWN_CLASS = "unknown class"
_MESSAGES = {
    "arguments": "plan files are JSON and hold neither .inf nor .nan: use null in {names}",
    "part size": f"must be {SIZES}",
    "side lengths": "must be a side length from 1 to 4096, or a list of height and width",
    "no part": f"this key is required: {SIZES}. For no validation, write 0",
    "own part": "this source has its own {part} part: leave this key out",
    "mean without std": "mean and std go together: a number each for every channel",
    "place": "give either path, or parts with a path for each part",
    "threads": "must be 'auto' (all cores this process may use) or a count from 1 to 1024",
    "duration": "must be a number with s, min or h, such as 10 min",
    "gpu count": "must be 'all', or a count of at least 1",
    "ids without data_parallel": "device_ids and output_device need strategy: data_parallel",
    "id twice": "device_ids names a GPU twice",
    "ids and count": "device_ids names {ids} GPUs, but count is {count}",
    "constant": "a constant schedule has no {names}",
    "plateau each step": "every: step: it follows the validation loss of an epoch: leave it out",
    "plateau of a maximum": "mode: max: this follows the validation loss: leave it out",
    "no weight decay": "weight_decay_exclude needs an optimizer of torch.optim with weight_decay",
    "mode": "is {name} better where it is larger (max) or smaller (min)?",
    "metric twice": "two metrics have one name: give another name, such as `as: top5`",
    "metric name": "as: {name} is no name for MLflow: letters, digits and _ . / -",
    "init": "must be one of {names}, or conv and linear, each with such a name or {{normal: 0.01}}",
    "weights": "there are no such weights; allowed: {names}",
}


def message_of(error: ValueError) -> str:
    """Return the message about a refused setting."""
    if not isinstance(error, SettingError):
        return str(error)
    if error.kind == _UNKNOWN_CLASS:
        return f"{unknown_name(**error.facts)}, or custom code as file.py:Name"
    return _MESSAGES[error.kind].format(**error.facts)

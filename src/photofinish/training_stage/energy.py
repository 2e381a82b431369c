"""The energy of a training on all the devices that share it."""

from __future__ import annotations

from itertools import chain

from photofinish.hardware.devices import nvidia_uuid
from photofinish.hardware.energy import Energy, added_up, energy_meters
from photofinish.processes.ranks import own_rank
from photofinish.training.teams import Team


class TeamEnergy:
    """Every process of the team watches its own devices; the first one on each machine its CPU besides."""

    def __init__(self, team: Team) -> None:
        self._team, rank = team, own_rank()
        uuids = [nvidia_uuid(device) for device in team.devices]
        leads = rank is None or rank.local_number == 0
        self._meters = energy_meters(team.devices[0].type, uuids, first_of_machine=leads)

    def begin(self) -> None:
        for meter in self._meters:
            meter.begin()

    def epoch_ended(self) -> None:
        for meter in self._meters:
            meter.epoch_ended()

    def training_ended(self) -> tuple[Energy, ...]:
        """Of everyone: the other processes ask at the same time."""
        everyones = self._team.gather_lists([meter.training_ended() for meter in self._meters])
        return added_up(chain.from_iterable(everyones))

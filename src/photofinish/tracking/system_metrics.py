"""MLflow's own system metrics, sampled often enough that a run of a second has some too."""

from __future__ import annotations

import threading
import time

import pynvml
from mlflow.exceptions import MlflowException
from mlflow.system_metrics.metrics.base_metrics_monitor import BaseMetricsMonitor
from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor
from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

from photofinish.tracking.documents import Point

_SAMPLE_SECONDS = 1.0


class SystemSampler:
    def __init__(self, first_step: int) -> None:
        self._monitors: list[BaseMetricsMonitor] = [CPUMonitor(), DiskMonitor(), NetworkMonitor(), *_gpu_monitors()]
        self._step = first_step
        self._points: list[Point] = []
        self._lock = threading.Lock()
        self._sample()
        threading.Thread(target=self._sample_for_ever, name="system-metrics", daemon=True).start()

    def take(self) -> list[Point]:
        """The samples since the last call, and one of this moment."""
        self._sample()
        with self._lock:
            points, self._points = self._points, []
        return points

    def _sample(self) -> None:
        with self._lock:
            now_ms = round(time.time() * 1000)
            for monitor in self._monitors:
                monitor.collect_metrics()
                values = monitor.aggregate_metrics()
                monitor.clear_metrics()
                self._points += [
                    Point(f"system/{key}", float(value), self._step, now_ms) for key, value in values.items()
                ]
            self._step += 1

    def _sample_for_ever(self) -> None:
        while True:
            time.sleep(_SAMPLE_SECONDS)
            self._sample()


def _gpu_monitors() -> list[BaseMetricsMonitor]:
    try:
        return [GPUMonitor()]
    except (RuntimeError, ImportError, MlflowException, pynvml.NVMLError):
        return []  # no NVIDIA GPU here

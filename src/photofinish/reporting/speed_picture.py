"""Picture of the speed over time, by commit."""

from __future__ import annotations

from matplotlib import rc_context
from matplotlib.figure import Figure

from photofinish.reporting.comparison_rows import Rows
from photofinish.reporting.drawing import (
    DEVICE_COLOURS,
    LINES,
    MARKERS,
    SOFT,
    STYLE,
    WIDTH,
    Picture,
    as_picture,
    seconds_on_axis,
)
from photofinish.wording import listed, seconds, times

_MOST_PANELS = 12
_MOST_MARKED_COMMITS = 6


@rc_context(STYLE)
def speed_history(series: list[Rows], commits: list[str]) -> Picture:
    """Draw each experiment's epoch time and accuracy by commit, and mark steps in the time."""
    shown = list(dict.fromkeys(points[0]["experiment"] for points in series))[:_MOST_PANELS]
    figure = Figure(figsize=(2 * WIDTH, 0.9 + 1.9 * len(shown)), layout="constrained")
    panels = figure.subplots(len(shown), 2, squeeze=False)
    places = {commit: place for place, commit in enumerate(commits)}
    descriptions = []
    for points in series:
        first, last = points[0], points[-1]
        if first["experiment"] not in shown:
            continue
        row = panels[shown.index(first["experiment"])]
        device, x = first["device"], [places[point["commit"]] for point in points]
        name = " ".join(filter(None, (device.upper(), first["machine"])))
        style = {"color": DEVICE_COLOURS[device], "marker": MARKERS[device], "label": name}
        row[0].plot(x, [point["epoch_seconds"] for point in points], LINES[device], **style)
        accuracies = [
            (place, point["test_accuracy"]) for place, point in zip(x, points, strict=True)
        ]
        known = [pair for pair in accuracies if pair[1] is not None]
        row[1].plot([place for place, _ in known], [value for _, value in known], **style)
        torch = ""
        for place, point in zip(x, points, strict=True):
            notes = [times(point["step"])] if point["step"] else []
            if point["torch"] != torch:
                torch = point["torch"]
                notes.append(f"torch {torch}")
            if point["step"]:
                row[0].axvline(place, color=SOFT, linewidth=1, linestyle=":")
            at = place, point["epoch_seconds"]
            row[0].annotate("\n".join(notes), at, (4, 4), textcoords="offset points", fontsize=7)
        steps = [
            f"{times(point['step'])} at {point['commit']}" for point in points if point["step"]
        ]
        descriptions.append(
            f"{first['experiment']} {name}: {seconds(first['epoch_seconds'])} an epoch at "
            f"{first['commit']}, {seconds(last['epoch_seconds'])} at {last['commit']}"
            + (f", steps {listed(steps)}" if steps else "")
        )
    every = -(-len(commits) // _MOST_MARKED_COMMITS)
    for experiment, row in zip(shown, panels, strict=True):
        row[0].set(title=experiment, ylabel="an epoch")
        row[0].set_ylim(bottom=0)
        row[0].yaxis.set_major_formatter(seconds_on_axis)
        row[1].set(ylabel="test accuracy")
        for axes in row:
            axes.set_xticks(range(0, len(commits), every), [each[:7] for each in commits[::every]])
            axes.set_xlim(-0.3, len(commits) - 0.5)
            axes.tick_params(axis="x", labelsize=7)
        row[0].legend(fontsize=7)
    caption = "Speed over time (dotted: a step)"
    return as_picture(figure, "speed-history", caption, f"{caption}. {'; '.join(descriptions)}")

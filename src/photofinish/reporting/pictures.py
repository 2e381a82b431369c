"""Picture of speed-ups over two settings."""

from __future__ import annotations

import math

from matplotlib import rc_context
from matplotlib.patches import Rectangle

from photofinish.answer.scaling import Grid
from photofinish.reporting.drawing import DEVICE_COLOURS, STYLE, WIDTH, Picture, as_picture, panel
from photofinish.wording import HIGH, limit, times


@rc_context(STYLE)
def heat_map(grid: Grid) -> Picture:
    """Draw a GPU's speed-up, or its bound, over two settings."""
    columns, rows = len(grid.columns), len(grid.rows)
    figure, axes = panel(WIDTH, 1.0 + 0.45 * rows)
    # A cell with a bound has no colour, because a bound does not show how fast a GPU is.
    logs = {
        place: 0.0 if cell.is_bound else math.log(cell.figure) for place, cell in grid.cells.items()
    }
    most = max(0.7, *map(abs, logs.values()))
    axes.set(xlim=(0, columns), ylim=(0, rows))
    axes.set_xticks([column + 0.5 for column in range(columns)], grid.columns)
    axes.set_yticks([row + 0.5 for row in range(rows)], grid.rows)
    axes.set(xlabel=grid.column_key, ylabel=grid.row_key)
    axes.grid(visible=False)
    descriptions = []
    for y, row in enumerate(grid.rows):
        for x, column in enumerate(grid.columns):
            cell = grid.cells[row, column]
            faster = times(cell.figure)
            if cell.is_bound:
                faster = f"up to {faster}" if cell.figure <= HIGH else limit(cell.figure)
            text = f"{faster}\n{cell.answer}"
            log = logs[row, column]
            colour = DEVICE_COLOURS["gpu" if log > 0 else "cpu"]
            alpha = 0.6 * abs(log) / most
            axes.add_patch(Rectangle((x, y), 1, 1, color=colour, alpha=alpha, linewidth=0))
            axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=7)
            descriptions.append(f"{row}, {column}: {text}".replace("\n", " "))
    caption = f"By {grid.row_key} and {grid.column_key}"
    return as_picture(figure, "grid", caption, f"{caption}: {'; '.join(descriptions)}")

"""Hold the bounds against every published speed: `python -m benchmarks.published`."""

from __future__ import annotations

import statistics

from benchmarks.published import held_by, published


def main() -> None:
    """A line for each, and what is in the middle."""
    shares = []
    for each in published():
        shares.append(each.floor.seconds / each.step_seconds)
        what = f"{each.model} {each.precision} {each.layout} on {each.accelerator.name}"
        print(f"{shares[-1]:.2f} of the bound's speed ({held_by(each.floor)}): {what}")
    highest, middle = max(shares), statistics.median(shares)
    print(
        f"{len(shares)} published speeds: "
        f"{highest:.2f} of their bound at most, {middle:.2f} in the middle"
    )


if __name__ == "__main__":
    main()

"""Which accelerator to rent, as a table and as a picture of time against cost."""

from __future__ import annotations

from collections.abc import Iterable

from photofinish.comparing.bounds import NINE_OF_TEN_WITHIN
from photofinish.comparing.pairs import Pair
from photofinish.comparing.renting import NEXT_TO_NOTHING, Offer, at_least, cost_of, front, price_of
from photofinish.params.compare import accelerators
from photofinish.report.drawing import BELOW, FLOOR, INK, LEFT, RIGHT, Drawing, Point, Scale, text_width
from photofinish.report.pictures import DEVICE_COLOURS, Picture, as_picture
from photofinish.report.tables import NOTHING, Table
from photofinish.wording import at_most, byte_size, money, seconds

_ESTIMATED = f"an epoch, estimated (9 of 10 within a factor of {NINE_OF_TEN_WITHIN})"
_COLOURS = {"bound": "#009e73", "estimate": "#cc79a7", **DEVICE_COLOURS, "record": "#e69f00"}
_OUTLINES = {"bound": "l4 4l-4 4l-4 -4z", "estimate": "l4 7h-8z"}
"""a diamond and a triangle, from their tips on; what was measured is a filled dot"""
_LEGEND = {
    "bound": ("at least", 56),
    "estimate": ("estimated", 62),
    "cpu": ("CPU here", 55),
    "gpu": ("GPU here", 55),
    "record": ("elsewhere", 0),
}
"""what a mark is, and how far from it the next one is"""
_TOP = 18.0
_MOST_NAMED = 8
"""beside their marks; of more, those on the front alone"""


def renting_table(pairs: Iterable[Pair]) -> Table:
    """The same for people."""
    rows = []
    for pair in pairs:
        goal, loads = pair.settings.target_accuracy, pair.cpu.record.experiment.input.name == "loader"
        for offer in pair.renting.offers:
            memory_gib = offer.accelerator.memory_gib
            row = {
                "experiment on accelerator": f"{pair.experiment} on {offer.accelerator.name}",
                "the job at most": NOTHING if pair.renting.without else f"{at_most(offer.job_at_most)}x",
                "the job at least": seconds(offer.job_seconds),
                "cost": _money(offer, offer.cost),
                "fits, memory at least": f"{offer.fits}, {byte_size(offer.needed_bytes)} of {memory_gib:g} GiB",
                "an epoch at most": NOTHING if loads and pair.renting.without else f"{at_most(offer.epoch_at_most)}x",
                "a step at least": f"{seconds(offer.step.seconds)} ({offer.step.held_by})",
                _ESTIMATED: seconds(offer.estimate.epoch_seconds) if offer.estimate else NOTHING,
            }
            if goal is not None:
                told = NOTHING if offer.target_seconds is None else seconds(offer.target_seconds)
                cost = f", {_money(offer, offer.target_cost)}" if offer.target_cost is not None else ""
                row[f"to {goal:g} accuracy at least"] = told + cost
            rows.append(row | {"an hour": _hour(pair, offer), "machine": offer.price.where if offer.price else NOTHING})
    if all(row[_ESTIMATED] == NOTHING for row in rows):
        for row in rows:
            del row[_ESTIMATED]
    return rows


def _money(offer: Offer, amount: float | None) -> str:
    return at_least(amount, offer.price.currency) if offer.price and amount is not None else NOTHING


def _hour(pair: Pair, offer: Offer) -> str:
    price = offer.price
    if price is None:
        return "no price known"
    old = ", old" if price.is_old(pair.renting.trained_on) else ""
    return f"{money(price.amount, price.currency)}{f', {price.as_of}' if price.as_of else ''}{old}"


def renting_pictures(pairs: Iterable[Pair]) -> list[Picture]:
    """Time against cost, of each experiment that is known to cost more than next to nothing."""
    return [picture for pair in pairs if (picture := _time_against_cost(pair))]


def _time_against_cost(pair: Pair) -> Picture | None:
    bounds = {
        offer.accelerator.name: (offer.job_seconds, offer.cost)
        for offer in pair.renting.offers
        if offer.cost and offer.job_seconds and offer.fits != "no"
    }
    if max((cost for _, cost in bounds.values()), default=0.0) < NEXT_TO_NOTHING:
        return None
    currency = next(offer.price.currency for offer in pair.renting.offers if offer.price)
    marks = [("bound", f"{name}: at least", place) for name, place in bounds.items()]
    marks += [
        ("estimate", f"{offer.accelerator.name}, estimated:", (about.job_seconds, about.cost))
        for offer in pair.renting.offers
        if (about := offer.estimate) and about.cost and offer.fits != "no"
    ]
    for run in pair.trained:
        if amount := pair.outlays[run.device].cost.amount:
            marks.append((run.device, f"{run.device.upper()}, measured:", (run.timings.total_seconds, amount)))
    marks += [("record", f"{name}, recorded elsewhere:", place) for name, place in _recorded_elsewhere(pair).items()]
    times, costs = zip(*(place for *_, place in marks), strict=True)
    x = Scale(min(times) / 1.5, max(times) * 1.5, LEFT, RIGHT, logarithmic=True)
    y = Scale(min(costs) / 1.5, max(costs) * 1.5, FLOOR, _TOP, logarithmic=True)
    drawing = Drawing(FLOOR + BELOW)
    drawing.x_axis(x, _TOP, FLOOR, "seconds of the whole job")
    drawing.y_axis(y, currency)
    _legend(drawing, {kind for kind, *_ in marks})
    best = front(list(bounds.values()))
    drawing.line([(x(time), y(cost)) for time, cost in best], _COLOURS["bound"], stroke_dasharray="3 2")
    for kind, what, (time, cost) in marks:
        _mark(drawing, kind, (x(time), y(cost)), f"{what} {seconds(time)} and {money(cost, currency)}")
    for name, (time, cost) in bounds.items():
        if (time, cost) in best or len(bounds) <= _MOST_NAMED:
            _name(drawing, (x(time), y(cost)), name)
    told = "; ".join(f"{name} {seconds(time)} and {money(cost, currency)}" for name, (time, cost) in bounds.items())
    told = f"At least, by data sheets, {pair.experiment} takes and costs on {told}"
    caption = f"{pair.experiment}: {pair.renting.prices}"
    return as_picture(drawing, f"renting-{pair.experiment}", caption, told)


def _recorded_elsewhere(pair: Pair) -> dict[str, Point]:
    """What other machines' GPUs took for the same training, and what that costs where a price is known."""
    names = {each.full_name: each.name for each in accelerators().values()}
    found = {}
    for each in pair.elsewhere:
        timings = each.reference.timings
        name = names.get(timings.device_name)
        # The price is that of one.
        if name and timings.device_count == 1 and (price := price_of(name, pair.settings.prices)) and price.amount:
            found[name] = (timings.total_seconds, cost_of(timings.total_seconds, price))
    return found


def _mark(drawing: Drawing, kind: str, place: Point, title: str = "") -> None:
    if kind in _OUTLINES:
        drawing.outline(place, _OUTLINES[kind], _COLOURS[kind], title)
    else:
        drawing.dot(place, _COLOURS[kind], square=kind != "cpu", title=title)


def _name(drawing: Drawing, place: Point, name: str) -> None:
    """Beside its mark, on the side where there is room."""
    x, y = place
    is_left = x + 6 + text_width(name) < RIGHT
    drawing.text((x + 6 if is_left else x - 6, y - 3), name, "start" if is_left else "end", INK)


def _legend(drawing: Drawing, shown: set[str]) -> None:
    left = LEFT + 4
    for kind, (told, width) in _LEGEND.items():
        if kind in shown:
            _mark(drawing, kind, (left, 8.0))
            drawing.text((left + 7, 8.0), told, "start")
            left += width

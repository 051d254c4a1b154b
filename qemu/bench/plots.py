#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""The plots of the benchmark: one HTML page that refers to no other files.

plots.py BENCH.JSON PAGE.HTML        draws the plots of a stored result; exit status 1 if pygal is missing
plots.py BENCH.JSON PLOT.SVG TITLE   draws one of them, which the title names, as the one in README.md
"""
import argparse
import html
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import goals  # noqa: E402
import report  # noqa: E402
from points import COUNTS, LATENCY, PERCENTILES, SIZES, Peer, amount_kind, driver_of  # noqa: E402

OPERATIONS = ("send", "write", "read")
# One colour for each driver, on every plot.
COLOURS = {"rxe_rs": "#c0392b", "rxe_rs+icrc": "#e59866", "rdma_rxe": "#2471a3", "siw": "#7d3c98", "tcp": "#1e8449", "limit": "#7f8c8d"}
OTHERS = "#b7950b"
# The series of a plot with rdma_rxe as the peer: the points and the driver.
PEERS = {"two rdma_rxe": ("client", "rdma_rxe"), "rxe_rs at the client": ("client", "rxe_rs"), "rxe_rs at the server": ("server", "rxe_rs")}
COLOURS |= {title: COLOURS[other] for title, other in zip(PEERS, ("rdma_rxe", "rxe_rs", "rxe_rs+icrc"))}
LOSSES = {"none": "loss0", "loss 0.1 %": "loss0.1", "loss 1 %": "loss1", "loss 3 %": "loss3", "reordered": "reorder1"}
STYLE = "body{font-family:sans-serif;max-width:76em;margin:1em auto;padding:0 1em}figure{display:inline-block;width:24em;margin:0}" \
        "svg{width:100%;height:auto}pre{overflow-x:auto}"


def median(data, point, driver):
    entry = goals.entry_of(data, point, driver)
    return entry.get("median") if entry else None


def over_size(data, driver, operation, unit):
    """The throughput at each size, in MiB/s (`bw`) or messages per second (`rate`)."""
    values = []
    for size in COUNTS:
        kind = amount_kind(size)
        value = median(data, f"{operation}_{kind}.{size}.poll", driver)
        if value is not None and kind != unit:
            value = value * SIZES[size] / 2**20 if unit == "bw" else value * 2**20 / SIZES[size]
        values.append(value)
    return values


def charts(data):
    """The plots: (title, title of the x axis, its labels, {driver: values}, logarithmic). A plot may have no values."""
    drivers = data["drivers"]
    kept = data.get("distributions", {})
    for operation in OPERATIONS:
        name = operation.upper()
        yield (f"{name}: MiB/s", "bytes", list(COUNTS), {d: over_size(data, d, operation, "bw") for d in drivers}, True)
        yield (f"{name}: messages/s", "bytes", list(COUNTS), {d: over_size(data, d, operation, "rate") for d in drivers}, True)
    for mode in ("poll", "event"):
        for operation in OPERATIONS:
            for size in LATENCY:
                found = kept.get(f"{operation}_lat.{size}.{mode}", {})
                yield (f"{operation.upper()} {size}, {mode}: latency, us", "percentile", [f"{p:g}" for p in PERCENTILES], found, True)
    for size in ("64", "4K"):
        counts = ("1", "100", "1000", "10000")
        yield (f"WRITE {size} of queue pairs in turn: messages/s", "queue pairs", list(counts),
               {d: [median(data, f"kernel-qps_rate.{size}.{n}", d) for n in counts] for d in drivers}, False)
    for operation in OPERATIONS:
        yield (f"{operation.upper()} 64K without USO: MiB/s", "packets", list(LOSSES),
               {d: [median(data, f"{operation}_bw.64K.poll-{network}", d) for network in LOSSES.values()] for d in drivers}, True)
    networks = {label: network for label, network in LOSSES.items() if network in Peer.NETWORKS}
    for operation in OPERATIONS:
        yield (f"{operation.upper()} 64K with rdma_rxe as the peer: MiB/s", "packets", list(networks),
               {title: [median(data, f"{operation}_bw.64K.{end}-{network}", driver) for network in networks.values()]
                for title, (end, driver) in PEERS.items()}, True)


def scale(values, logarithmic):
    """The range of the y axis. A logarithmic one has labels 1, 2, 5, 10 … that enclose the values; another one begins at zero and has the
    labels that pygal chooses."""
    top = max(values)
    if not logarithmic:
        return {"range": (0, top)}
    ladder = [n * 10.0 ** power for power in range(-6, 13) for n in (1, 2, 5)]
    low, high = max(y for y in ladder if y <= min(values)), min(y for y in ladder if y >= top)
    labels = [y for y in ladder if low <= y <= high]
    return {"range": (low, high), "y_labels": labels, "value_formatter": lambda y: f"{y:,.10g}"}


def draw(title, axis, labels, series, logarithmic):
    """The SVG of one plot; None if it would be empty."""
    import pygal
    from pygal.style import Style
    # Zero has no logarithm.
    series = {driver: [v if v or v == 0 and not logarithmic else None for v in values] for driver, values in series.items() if any(values)}
    if not series:
        return None
    axis_y = scale([v for values in series.values() for v in values if v is not None], logarithmic)
    style = Style(background="white", plot_background="white", title_font_size=18, label_font_size=13, major_label_font_size=13,
                  legend_font_size=14, colors=tuple(COLOURS.get(d, COLOURS.get(driver_of(d), OTHERS)) for d in series))
    # Without scripts: those of pygal are loaded from another site.
    chart = pygal.Line(style=style, js=[], title=title, x_title=axis, x_labels=labels, logarithmic=logarithmic, width=640, height=420,
                       legend_at_bottom=True, disable_xml_declaration=True, dots_size=3, **axis_y)
    for driver, values in series.items():
        chart.add(driver, values)
    return chart.render(is_unicode=True)


def page(data, text):
    """The HTML page, with the plots and the tables below."""
    figures = [svg for chart in charts(data) if (svg := draw(*chart))]
    head = f"Linux {data['release']} ({data['machine']}), {data['rounds']} rounds, {data['host']['cpus']} x {data['host']['cpu']}, " \
           f"revision {data['revision']}, {data['date']}"
    return (f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>rxe_rs: benchmark</title><style>{STYLE}</style></head>'
            f"<body><h1>rxe_rs: benchmark</h1><p>{html.escape(head)}</p>\n"
            + "\n".join(f"<figure>{svg}</figure>" for svg in figures)
            + f"\n<pre>{html.escape(text)}</pre></body></html>\n")


def one(data, title):
    """The SVG of the plot with that title."""
    chart, = (chart for chart in charts(data) if chart[0] == title)
    return draw(*chart)


def missing():
    """Why no plots can be drawn; None if they can."""
    try:
        import pygal  # noqa: F401
    except ImportError:
        return "cannot draw plots: install Debian's package python3-pygal"
    return None


def write(data, text, path):
    """Writes the page. Returns None, or the reason why it cannot be written."""
    if problem := missing():
        return problem
    Path(path).write_text(page(data, text))
    return None


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("result", type=report.result)
    parser.add_argument("page")
    parser.add_argument("title", nargs="?")
    options = parser.parse_args()
    if options.title is None:
        return write(options.result, report.text(options.result), options.page)
    titles = [chart[0] for chart in charts(options.result)]
    if problem := missing():
        return problem
    if options.title not in titles:
        parser.error(f"no such plot: {options.title}; there are: {', '.join(titles)}")
    if not (svg := one(options.result, options.title)):
        return f"the result has no values for the plot {options.title}"
    Path(options.page).write_text(svg + "\n")
    return None


if __name__ == "__main__":
    sys.exit(main())

"""`python -m lab.complexity_page`: draw the pictures of docs/measured/complexity.md from the records; its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.records import records
from papers.model_sizes import sizes as model_sizes
from papers.reach import influence

IMAGES = Path("docs/images")
INFLUENCE = "text-classification/influence"
# Vaswani 2017, table 1, for n positions, width d, and a kernel or neighborhood of k or r: operations per layer,
# sequential operations, and maximum path length. The path of contiguous kernels is that of section 4.
TABLE_1 = {
    "rnn": ("n d²", "n", "n"),
    "lstm": ("n d²", "n", "n"),
    "convolution": ("k n d²", "1", "n / k (dilated: log n to the base k)"),
    "attention": ("n² d", "1", "1"),
    "local attention": ("r n d", "1", "n / r"),
}
FORWARD, BACKWARD = "layer, forward", "layer, forward and backward"


def grown() -> list[dict[str, Any]]:
    """Return the records of `python -m benchmarks growth`."""
    return [record for record in records("bench") if record.get("bench") == ["growth"]]


def influences() -> dict[str, Any] | None:
    return next((r for r in records() if r["recipe"] == INFLUENCE and not r["overrides"].get("models")), None)


def influence_part() -> str:
    record = influences()
    if record is None:
        return "No record exists yet."
    return f"![Influence over distance](../images/influence.png)\n\n```\n{influence.table(record['by_distance'])}\n```"


def layers_table() -> str:
    """Return the paper's table with measured exponents; without a record, the paper's table alone."""
    runs = grown()
    head = ["layer", "operations", "in sequence", "longest path"]
    for record in runs:
        head += [f"time, {where(record)}", "with backward", "memory", "with backward"]
    rows = [head, ["---"] * 4 + ["--:"] * (len(head) - 4)]
    for kind, cells in TABLE_1.items():
        measured: list[str] = []
        for record in runs:
            forward, backward = (curve(record, part, kind, "length") for part in (FORWARD, BACKWARD))
            for quantity in ("seconds", "bytes"):
                measured += [f"n^{c[f'{quantity}_exponent']:.2f}" for c in (forward, backward)]
        rows.append([kind, *cells, *measured])
    return markdown(rows)


def times_table() -> str:
    """Return seconds and memory of each layer and decoder at the ends of each curve."""
    parts = []
    for record in grown():
        rows = [["measured", "grows", "from", "to", "seconds", "exponent", "MB", "exponent"],
                ["---", "---", *["--:"] * 6]]  # fmt: skip
        for c in record["curves"]:
            (first, last), (least, most) = (c["at"][0], c["at"][-1]), (c["seconds"][0], c["seconds"][-1])
            small, large = (size / 1e6 for size in (c["bytes"][0], c["bytes"][-1]))
            rows.append([
                f"{c['part']}: {c['name']}", c["against"], f"{first:,}", f"{last:,}", f"{least:.2g} to {most:.2g}",
                f"{c['seconds_exponent']:.2f}", f"{small:,.1f} to {large:,.1f}", f"{c['bytes_exponent']:.2f}",
            ])  # fmt: skip
        picture = f"![Time and memory, {where(record)}](../images/{picture_of(record)})"
        parts += [f"### {where(record)}", picture, markdown(rows)]
    return "\n\n".join(parts) or "No record exists yet."


def sizes_table() -> str:
    rows = [["published", "preset", "reads", "parameters"], ["---", "---", "---", "--:"]]
    rows += [[size.month, f"`{size.preset}`", size.reads, f"{size.parameters:,}"] for size in model_sizes.sizes()]
    return markdown(rows)


def curve(record: dict[str, Any], part: str, name: str, against: str) -> dict[str, Any]:
    entry: dict[str, Any] = next(
        c for c in record["curves"] if (c["part"], c["name"], c["against"]) == (part, name, against)
    )
    return entry


def where(record: dict[str, Any]) -> str:
    hardware = record["hardware"]
    threads = f"{hardware['threads']} thread{'s' * (hardware['threads'] > 1)}"
    return str(hardware["gpu"]) if record["device"] == "cuda" else f"{threads}, {hardware['cpu']}"


def picture_of(record: dict[str, Any]) -> str:
    return f"growth-{record['device']}.png"


def markdown(rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def draw_growth(record: dict[str, Any], out: Path) -> Path:
    """Draw seconds and memory, a column each: layers against length, decoders against each quantity."""
    from matplotlib.figure import Figure

    panels = [(part, "length") for part in (FORWARD, BACKWARD)]
    panels += [("decoder", against) for against in ("length", "batch", "vocabulary", "beam")]
    figure = Figure(figsize=(9, 2.7 * len(panels)), layout="constrained")
    for row, (part, against) in zip(figure.subplots(len(panels), 2), panels, strict=True):
        shown = [c for c in record["curves"] if (c["part"], c["against"]) == (part, against)]
        for panel, (quantity, unit, scale) in zip(row, (("seconds", "s", 1.0), ("bytes", "MB", 1e6)), strict=True):
            for c in shown:
                values = [value / scale for value in c[quantity]]
                panel.plot(c["at"], values, marker="o", markersize=3, label=c["name"])
            panel.set(xscale="log", yscale="log", xlabel=against, ylabel=unit, title=part)
            least, most = panel.get_ylim()
            if most < 10 * least:  # constant values look flat
                panel.set_ylim((least * most / 10) ** 0.5, (least * most * 10) ** 0.5)
            panel.grid(alpha=0.3)
        row[0].legend(frameon=False, fontsize=9)
    figure.savefig(out, dpi=90)
    return out


def page() -> str:
    """Return the text between the page's markers."""
    parts = {
        "## Influence over distance": influence_part(),
        "## Operations, sequence, path": layers_table(),
        "## Time and memory": times_table(),
        "## Sizes over time": f"![Parameters over the years](../images/model-sizes.png)\n\n{sizes_table()}",
    }
    return "\n\n".join(f"{title}\n\n{part}" for title, part in parts.items())


PARTS = (page,)


def main() -> None:
    record = influences()
    if record is not None:
        guessed = 1 / record["overrides"].get("symbols", 8)
        influence.draw(record["by_distance"], IMAGES / "influence.png", guessed)
    for growth in grown():
        draw_growth(growth, IMAGES / picture_of(growth))
    model_sizes.draw(model_sizes.sizes(), IMAGES / "model-sizes.png")


if __name__ == "__main__":
    main()

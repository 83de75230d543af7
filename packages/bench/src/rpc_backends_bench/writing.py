"""Write the files of a run: results, HTML page and plots."""

from __future__ import annotations

import json
from pathlib import Path

from rpc_backends_bench import page, plots
from rpc_backends_bench.compare import Comparison
from rpc_backends_bench.results import Results


def write(results: Results, comparison: Comparison | None, folder: Path) -> list[Path]:
    """Write ``results.json``, ``index.html`` and a PNG for each plot; return the files.

    The results are written first, so that an error in the rest does not lose them.
    """
    written = [folder / "results.json"]
    written[0].write_text(json.dumps(results.to_json(), indent=1) + "\n", encoding="utf-8")
    pictures = [plots.draw(plot, results) for plot in plots.available(results)]
    written.append(folder / "index.html")
    written[1].write_text(page.render(results, comparison, pictures), encoding="utf-8")
    for picture in pictures:
        file = folder / f"{picture.plot.name}.png"
        file.write_bytes(picture.png)
        written.append(file)
    return written

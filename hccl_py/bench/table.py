"""The record of a run as lines of comma-separated values: one a library, collective, size and form."""

from __future__ import annotations

import csv
import io
from typing import Any

COLUMNS = (
    "library", "collective", "type", "redop", "root", "ranks", "size_bytes", "count", "form", "time_s", "low_s",
    "high_s", "algbw_Bps", "busbw_Bps", "wrong", "samples", "time_ratio", "time_ratio_low", "time_ratio_high",
)  # fmt: skip
FORMS = {"out_of_place": "out of place", "in_place": "in place"}


def to_csv(record: dict[str, Any]) -> str:
    """Return the record of :func:`hccl_py.bench.report.document` as CSV with a heading.

    time_ratio: time of our library / time of this line's, the median of paired samples, with its 95% limits; empty on
    our own lines.
    """
    ratios = {
        (one["baseline"], one["case"], one["type"], one["redop"], one["root"], one["size_bytes"], one["form"]): one[
            "ratio"
        ]
        for one in record["ratios"]
    }
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in record["rows"]:
        for key, form in FORMS.items():
            cell = row[key]
            if "absent" in cell:
                continue
            where = (
                row["library"],
                row["collective"],
                row["dtype"],
                row["redop"],
                row["root"],
                row["size_bytes"],
                form,
            )
            ratio = ratios.get(where)
            line = {**row, **cell, "type": row["dtype"], "form": form, "ranks": record["ranks"]}
            line["samples"] = len(cell["samples_s"])
            if ratio is not None:
                line |= {
                    "time_ratio": ratio["median"],
                    "time_ratio_low": ratio["low"],
                    "time_ratio_high": ratio["high"],
                }
            writer.writerow(line)
    return out.getvalue()

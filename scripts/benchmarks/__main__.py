"""
Measures the library against its peers: run by `scripts/bench`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from subjects import SUBJECTS


def main() -> int:
    """
    Measure the chosen subjects, print what they found, and return the exit status.
    """
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description="Measures the library against its peers. Figures of one run compare with each other alone.",
        epilog="subjects: " + "; ".join(f"{name}: {subject.about}" for name, subject in SUBJECTS.items()),
    )
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help="what to measure; everything if left out")
    parser.add_argument("--quick", action="store_true", help="measure less thoroughly, in some seconds")
    parser.add_argument("--gate", action="store_true", help="exit with 1 if a bound is not kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE as well")
    options = parser.parse_args()
    unknown = [name for name in options.subjects if name not in SUBJECTS]
    if unknown:
        parser.error(f"no such subject: {', '.join(unknown)}; expected {', '.join(SUBJECTS)}")

    reports = {}
    for name in options.subjects or SUBJECTS:
        reports[name] = SUBJECTS[name].measure(quick=options.quick)
        print(f"{name}: {SUBJECTS[name].about}\n\n{reports[name]}\n", flush=True)
    if options.json:
        figures = {name: report.to_json() for name, report in reports.items()}
        options.json.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    kept = all(bound.holds for report in reports.values() for bound in report.bounds)
    return 1 if options.gate and not kept else 0


if __name__ == "__main__":
    sys.exit(main())

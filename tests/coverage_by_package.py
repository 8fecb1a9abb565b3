"""Line coverage by package, from the file that `scripts/test --coverage` writes. Compiled kernels are not traced."""

import json
import sys
from collections import Counter
from pathlib import Path

PACKAGE = "src/fedgram/"


def table(report: Path) -> str:
    """One line per package, and one for all: statements, and the share of them that ran."""
    statements: Counter[str] = Counter()
    covered: Counter[str] = Counter()
    for name, file in json.loads(report.read_text())["files"].items():
        package = Path(name[name.index(PACKAGE) + len(PACKAGE) :]).parts[0]
        for row in (package, "all"):
            statements[row] += file["summary"]["num_statements"]
            covered[row] += file["summary"]["covered_lines"]
    rows = sorted(statements, key=lambda row: (row == "all", row))
    return "\n".join(
        f"{row:24} {statements[row]:6} {100 * covered[row] / max(statements[row], 1):6.1f} %" for row in rows
    )


if __name__ == "__main__":
    print(table(Path(sys.argv[1])))

"""What a federation of many devices needs, from what one report was measured to cost.

    python -m benchmarks.federation_sizing [--superlink-ms 102] [--up-mb 1.1] [--down-mb 0.6] [--round 10000]

The SuperLink is one process and the limit; its processor time per report is measured by `benchmarks.federation_load`. A
counting pass invites every device once, a training round some of them. Servers are added until a pass takes at most
`--hours`; idle devices poll so that each server answers `--polls` requests per second.
"""

import argparse
from math import ceil

from benchmarks.measure import save


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--superlink-ms", type=float, default=102.0, help="Processor time of the SuperLink per report.")
    parser.add_argument("--up-mb", type=float, default=1.1, help="Megabytes from a device per report.")
    parser.add_argument("--down-mb", type=float, default=0.6, help="Megabytes to a device per report.")
    parser.add_argument("--round", type=int, default=10_000, help="Devices of a training round.")
    parser.add_argument("--hours", type=float, default=6.0, help="Longest acceptable counting pass.")
    parser.add_argument("--busy", type=float, default=0.7, help="Share of a core that a SuperLink may use for reports.")
    parser.add_argument("--polls", type=float, default=50.0, help="Polls of idle devices per second and server.")
    given = parser.parse_args()
    rate = given.busy / (given.superlink_ms / 1000)
    rows = []
    for devices in (100_000, 1_000_000, 10_000_000):
        servers = ceil(devices / (rate * 3600 * given.hours))
        per_second = servers * rate
        rows.append({
            "devices": devices, "servers": servers, "reports/s": round(per_second, 1),
            "Mbit/s in": round(8 * given.up_mb * per_second), "Mbit/s out": round(8 * given.down_mb * per_second),
            "hours per counting pass": round(devices / per_second / 3600, 1),
            "minutes per training round": round(given.round / per_second / 60, 1),
            "polling interval, s": ceil(devices / servers / given.polls),
        })  # fmt: skip
    save("federation_sizing", rows)


if __name__ == "__main__":
    main()

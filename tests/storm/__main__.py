"""`make storm`: a long storm on each protocol machine, with its seed."""

from __future__ import annotations

import argparse
import random
import sys

from .run import storm


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.storm", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--machine", choices=["ngh2", "h2", "both"], default="both")
    options = parser.parse_args()
    machines = ["ngh2", "h2"] if options.machine == "both" else [options.machine]
    for machine in machines:
        print(f"storm on {machine}, seed {options.seed}, {options.seconds / len(machines):g} s", flush=True)
        print(storm(options.seconds / len(machines), options.seed, machine), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

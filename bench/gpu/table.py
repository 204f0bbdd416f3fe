#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The table of bench/gpu.sh from the logs that it has written: times, rates of what left each GPU, shares of floors."""
import json
import pathlib
import re
import sys

PEERS_BEST = re.compile(r"^peer stores, \d+ blocks of \d+\s+([0-9.]+) GB/s")


def floors(folder):
    """GB/s of plain peer stores, the best of the grids; None without peers."""
    path = folder / "floors.log"
    rates = [float(m.group(1)) for line in path.read_text().splitlines() if (m := PEERS_BEST.match(line))] \
        if path.exists() else []
    return max(rates) if rates else None


def seconds(case, name):
    for operation in case["operations"]:
        if operation["op"] == name:
            return operation
    return None


def rows(folder, link):
    for path in sorted(folder.glob("epx-*.json")):
        try:
            report = json.loads(path.read_text())
        except json.JSONDecodeError:
            continue
        for case in report["cases"]:
            for name in ("route", "dispatch", "combine"):
                found = seconds(case, name)
                if found is None:
                    continue
                time = found["seconds"]["median"]
                leaves = found.get("remote_bytes", 0) / report["ranks"]
                floor = leaves / (link * 1e9) if link and leaves else None
                yield {"case": path.stem[4:], "tokens": case["tokens"], "op": name, "us": time * 1e6,
                       "rate": leaves / time * 1e-9 if leaves else None, "floor": floor * 1e6 if floor else None,
                       "share": floor / time if floor else None}


def cell(value, text, width):
    return text.format(value).rjust(width) if value is not None else "-".rjust(width)


def main():
    folder = pathlib.Path(sys.argv[1])
    link = floors(folder)
    print(f"plain peer stores: {link:.0f} GB/s" if link else "no peers: rates of the link are left out")
    print(f"{'case':<20} {'op':<9} {'time':>10} {'leaves a GPU':>13} {'floor':>9} {'share':>6}")
    times = {}
    for row in rows(folder, link):
        times[row["case"], row["op"]] = row["us"]
        print(f"{row['case']:<20} {row['op']:<9} {row['us']:>7.1f} us {cell(row['rate'], '{:.0f} GB/s', 13)} "
              f"{cell(row['floor'], '{:.0f} us', 9)} {cell(row['share'], '{:.0%}', 6)}")
    torch = folder / "torch.json"
    if torch.exists() and torch.read_text().strip():
        usual = json.loads(torch.read_text())
        both = usual["dispatch_us"] + usual["combine_us"]
        print(f"PyTorch {usual['torch']}: dispatch {usual['dispatch_us']:.0f} us, combine {usual['combine_us']:.0f} us")
        for case in ("expanded-8192", "indexed-8192"):
            parts = [times.get((case, op)) for op in ("route", "dispatch", "combine")]
            if None not in parts:
                print(f"  {case}: {both / sum(parts):.1f} times as fast, routing included")


if __name__ == "__main__":
    main()

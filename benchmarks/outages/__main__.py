"""Outages of all that a pipeline needs, and what each surface said of them at each moment: a verdict.

    python -m benchmarks.outages [--minutes 60] [--seconds-max 300] [--seed 1] [--only s3 …] [--keep FOLDER]
    python -m benchmarks.outages --judge FOLDER [--until SECONDS]

PostgreSQL, Debezium, Kafka and a schema registry (Avro), ``lakebed run`` of a database of four tables under load, with the tables
and the checkpoint in S3. Until ``minutes`` have passed, one dependency after the other is down, for ``seconds-min`` to
``seconds-max``, with pauses between: kinds, ways and durations come from the seed.

Everything is real but for these: the networks that fail are gates on loopback (``gate``), and the answers 503 and 507 of a busy
or full object store are made by the fault proxy. A full disk is a small tmpfs, which root may mount, with the temporary folder
and the cache of ``lakebed run``; without root there is no such outage, and only the store is full (507).

Each second or two it notes what is true (what is down, the newest transaction in the database and in the tables) and what
``lakebed status`` (output and exit code), the display, the metrics and the page say. The verdict has five questions:

1.  A dependency that is down for longer than 15 s: does each surface name it from then on, until it is back? Is the exit code of
    ``status`` not 0?
2.  Do rows flow again within 15 s of its end?
3.  Does no surface say that something is down that is not? For 15 s after an outage it may still.
4.  In the end, do the tables equal the database, and does the run end with exit code 0?
5.  Is the number of lines that the run writes during an outage bounded?

It prints a table by kind of dependency and ``VERDICT ok``, or what is wrong; then the exit code is 1. ``--judge`` prints that of
a run that was kept, or of its first seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from benchmarks.outages.verdict import DETECTED_SECONDS, Lag, Outage, Records, Said, judge, named
from benchmarks.outages.world import StatusProcess, World, fetched
from benchmarks.workload import table

PAUSE_SECONDS = (20.0, 40.0)
LOOK_SECONDS = 2.0
_WELL = re.compile(r"\d\d:\d\d:\d\d (running|first batch)")
_TROUBLE = re.compile(r"\d\d:\d\d:\d\d (trying again.*)")
_DOWN = re.compile(r"(kafka|connector|registry|store|disk) is down: .*")
_BACK = re.compile(r"(kafka|connector|registry|store|disk) answers again")
_TABLE, _CHECK = re.compile(r'table="([^"]*)"'), re.compile(r'check="([^"]*)"')
_URL = re.compile(r"(page|metrics) at (http://[\w.:]+\S*)")


class Watcher:
    """Notes what each surface says, each in a thread of its own, since one that hangs must not delay the others."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.said: list[Said] = []
        self.lags: list[Lag] = []
        self.over = threading.Event()
        self._status = StatusProcess(world)
        urls = {name: url.rstrip(";,") for _, text in world.lines for name, url in _URL.findall(text)}
        looks: dict[str, Callable[[], tuple[bool, str]]] = {
            "status": self._look_at_status,
            "display": self._look_at_display,
        }
        if "metrics" in urls:
            looks["metrics"] = lambda: down_in_metrics(fetched(urls["metrics"]))
        if "page" in urls:
            looks["page"] = lambda: down_on_page(fetched(f"{urls['page']}api/tables"))
        for name, look in looks.items():
            threading.Thread(target=self._watch, args=(name, look), name=name, daemon=True).start()
        threading.Thread(target=self._note_lag, name="lag", daemon=True).start()

    def _watch(self, surface: str, look: Callable[[], tuple[bool, str]]) -> None:
        while not self.over.wait(LOOK_SECONDS):
            began = self._world.now()
            try:
                is_well, text = look()
            except (OSError, ValueError) as error:  # ValueError: it ended, or its answer is no JSON
                if self.over.is_set():
                    return
                is_well, text = False, f"no answer: {error}"
            self.said.append(Said(surface, began, self._world.now(), named(text), is_well, text))

    def _look_at_status(self) -> tuple[bool, str]:
        code, text = self._status.ask()
        return code == 0, text

    def _look_at_display(self) -> tuple[bool, str]:
        """What the newest lines of display and log say is down, and whether the run tries again."""
        phase, down = "", dict[str, str]()
        for _, line in list(self._world.lines):
            if found := _DOWN.search(line):
                down[found[1]] = found[0]
            elif found := _BACK.search(line):
                down.pop(found[1], None)
            elif found := _TROUBLE.match(line):
                phase = found[1]
            elif _WELL.match(line):
                phase = ""
        text = "; ".join(filter(None, [phase, *down.values()]))
        return not text, text

    def _note_lag(self) -> None:
        while not self.over.wait(1.0):
            self.lags.append(Lag(self._world.now(), self._world.lag_seconds))

    def close(self) -> None:
        self.over.set()
        self._status.close()


def down_in_metrics(text: str) -> tuple[bool, str]:
    """What the metrics say is wrong with the database as a whole: ``lakebed_findings`` with the check that found it."""
    lines = [line for line in text.splitlines() if line.startswith("lakebed_findings{")]
    database = min((found[1] for line in lines if (found := _TABLE.search(line))), key=len, default="")
    wrong = [
        found[1]
        for line in lines
        if f'table="{database}"' in line and not line.endswith(" 0.0") and (found := _CHECK.search(line))
    ]
    return not wrong, "; ".join(wrong)


def down_on_page(text: str) -> tuple[bool, str]:
    """The same of the page: what it says above its tables."""
    wrong = sorted({one["check"] for database in json.loads(text)["databases"] for one in database["findings"]})
    return not wrong, "; ".join(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seconds-min", type=float, default=5, help="the shortest outage (default: 5)")
    parser.add_argument("--seconds-max", type=float, default=300, help="the longest outage (default: 300)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", metavar="KIND[/HOW]", help="such as s3 or kafka/refuse")
    parser.add_argument("--keep", type=Path, help="a new folder for the records and the run's lines")
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="judge a run that was kept")
    parser.add_argument("--until", type=float, default=math.inf, metavar="SECONDS", help="judge its first seconds")
    options = parser.parse_args()
    if options.judge:
        return report(records_of(options.judge, options.until))
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True, parents=True)
        world = World(stack, folder.resolve(), options.seed)
        print("the servers run; starting the pipeline …", flush=True)
        world.begin()
        time.sleep(PAUSE_SECONDS[0])
        watcher = Watcher(world)
        time.sleep(PAUSE_SECONDS[0])
        outages = cause_outages(world, options)
        watcher.close()
        wrong = world.end()
        records = Records(outages, watcher.said, watcher.lags, [at for at, _ in world.lines], wrong)
        (folder / "records.json").write_text(json.dumps(asdict(records), default=sorted))
    return report(records)


def records_of(folder: Path, until: float) -> Records:
    """What was seen in a run that was kept, up to a second of it."""
    found = json.loads((folder / "records.json").read_text())
    said = [Said(**{**one, "names": frozenset(one["names"])}) for one in found["said"]]
    return Records(
        outages=[one for each in found["outages"] if (one := Outage(**each)).ended < until],
        said=[one for one in said if one.ended < until],
        lags=[one for each in found["lags"] if (one := Lag(**each)).at < until],
        lines=[at for at in found["lines"] if at < until],
        ends_wrong=found["ends_wrong"] if until == math.inf else (),
    )


def cause_outages(world: World, options: argparse.Namespace) -> list[Outage]:
    """One after the other, until the time is over: all kinds come equally often."""
    until = time.monotonic() + options.minutes * 60
    outages: list[Outage] = []
    waiting: list[str] = []
    ways = {
        kind: chosen
        for kind, of in world.ways().items()
        if (
            chosen := [how for how in of if not options.only or kind in options.only or f"{kind}/{how}" in options.only]
        )
    }
    turns: dict[str, list[str]] = {kind: [] for kind in ways}
    while time.monotonic() < until:
        if not waiting:
            waiting = sorted(ways)
            world.draw.shuffle(waiting)
        kind = waiting.pop()
        if not turns[kind]:
            turns[kind] = world.draw.sample(ways[kind], len(ways[kind]))
        how = turns[kind].pop()
        seconds = math.exp(world.draw.uniform(math.log(options.seconds_min), math.log(options.seconds_max)))
        began = world.now()
        print(f"{began:7.1f} s: {kind} ({how}) is down for {seconds:.0f} s", flush=True)
        with world.down(kind, how):
            time.sleep(seconds)
            asked_at = world.now()
        outages.append(Outage(kind, how, began, world.now()))
        late = world.now() - asked_at
        print(
            f"{world.now():7.1f} s: it is back{f', {late:.0f} s after it was asked to be' if late > 1 else ''}",
            flush=True,
        )
        time.sleep(world.draw.uniform(*PAUSE_SECONDS))
    return outages


def report(records: Records) -> int:
    verdict = judge(records)
    table(
        f"Outages; down for longer than {DETECTED_SECONDS:.0f} s is to be detected",
        ["", "outages", "seconds down", "longest detection s", "longest recovery s", "false alarms"],
        [
            [kind, row.outages, row.seconds, row.detection, row.recovery, row.false_alarms]
            for kind, row in verdict.rows.items()
        ],
    )
    for each in verdict.violations:
        print(f"- {each}")
    print("VERDICT ok" if not verdict.violations else f"VERDICT {len(verdict.violations)} violations")
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())

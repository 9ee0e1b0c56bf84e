"""The planner over simulated days: how much it writes, how deep it lets the table become, and that the figures add up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lakebed.errors import InvalidInput
from lakebed.planning.admission import budget_elsewhere
from lakebed.planning.candidates import least_written
from lakebed.planning.simulator import simulate
from lakebed.planning.workload import Arrival, Simulation, Workload, plot, steady
from lakebed.settings import TableSettings

MB = 2**20


def equal(count: int, size: int = 10_000, rows: int = 100) -> list[Arrival]:
    return [Arrival(at_ms=60_000 * (number + 1), rows=rows, bytes=size) for number in range(count)]


def deepest(simulation: Simulation) -> int:
    return max(sample.depth_max for sample in simulation.samples)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flushes", "budget"),
    [
        (1440, 8),
        (300, 8),
        pytest.param(700, 8, marks=pytest.mark.slow),
        pytest.param(1440, 4, marks=pytest.mark.long),
        pytest.param(1440, 16, marks=pytest.mark.long),
        pytest.param(3000, 8, marks=pytest.mark.long),
    ],
)
def test_equal_flushes_cost_little_more_than_the_optimum(flushes: int, budget: int) -> None:
    simulation = simulate(Workload(arrivals=equal(flushes)), TableSettings(read_budget=budget))
    assert simulation.merged_to_reference <= 1.25
    assert simulation.reference_bytes == least_written(flushes, budget) * 10_000
    assert deepest(simulation) <= budget


@pytest.mark.long
@pytest.mark.slow
def test_a_day_of_flushes_of_a_megabyte_stays_near_the_optimum_when_parts_are_split() -> None:
    simulation = simulate(Workload(arrivals=equal(1440, MB, 10_000)), TableSettings(plan_bytes_max=1200 * MB))
    assert simulation.merged_to_reference <= 1.25
    assert simulation.samples[-1].parts >= 1440 / 128
    assert deepest(simulation) <= 8


def test_flushes_that_ascend_are_only_put_together() -> None:
    simulation = simulate(Workload(arrivals=equal(700, MB, 10_000), order="ascending"), TableSettings())
    assert simulation.samples[-1].write_amplification < 4
    assert simulation.samples[-1].parts <= 700 / 128 + 3 * 8
    assert deepest(simulation) <= 2


def test_without_an_order_small_files_are_packed() -> None:
    simulation = simulate(Workload(arrivals=equal(300, MB, 10_000), order="none"), TableSettings())
    assert simulation.samples[-1].parts <= 300 / 64 + 8


def test_each_partition_is_kept_within_the_budget_at_the_same_cost() -> None:
    one = simulate(Workload(arrivals=equal(200)), TableSettings())
    four = simulate(Workload(arrivals=equal(200), partitions=4), TableSettings())
    assert deepest(four) <= 8
    assert four.samples[-1].write_amplification == pytest.approx(one.samples[-1].write_amplification, rel=0.02)


def test_the_tail_is_settled_when_the_settings_say_so() -> None:
    at_once = simulate(Workload(arrivals=equal(120), update_share=0.5), TableSettings())
    assert at_once.settles == 120 and all(sample.tail_parts == 0 for sample in at_once.samples)
    for settings in (TableSettings(settle_after_changes=1000), TableSettings(settle_after_age_seconds=540)):
        later = simulate(Workload(arrivals=equal(120), update_share=0.5), settings)
        assert later.settles == 12
        assert max(sample.tail_parts for sample in later.samples) == 9
        assert later.samples[-1].live_bytes == pytest.approx(at_once.samples[-1].live_bytes, rel=0.01)
    unordered = simulate(Workload(arrivals=equal(20), order="none"), TableSettings(settle_after_changes=1000))
    assert unordered.settles == 0 and unordered.samples[-1].tail_parts == 0


def test_deletes_and_what_lay_there_before_count() -> None:
    deleting = [
        Arrival(at_ms=60_000 * number, rows=100, bytes=10_000, deletes=100, replaces=100) for number in range(1, 41)
    ]
    base = Arrival(at_ms=0, rows=10_000, bytes=1_000_000)
    last = simulate(Workload(arrivals=deleting, base=base), TableSettings(target_part_rows=3000)).samples[-1]
    assert last.live_bytes == pytest.approx(600_000, rel=0.01)
    assert last.ingested_bytes == 400_000, "the base is not counted as ingested"
    assert last.parts >= 4


@pytest.mark.parametrize("order", ["random", "ascending"])
def test_what_updates_replace_is_dropped_by_merges_and_purges(order: str) -> None:
    workload = Workload(arrivals=equal(400, MB, 10_000), update_share=0.7, update_skew=0.5, order=order)  # type: ignore[arg-type]
    simulation = simulate(workload, TableSettings())
    last = simulation.samples[-1]
    live_rows_expected = 400 * 10_000 * 0.3
    assert last.live_bytes == pytest.approx(live_rows_expected / 10_000 * MB, rel=0.05)
    assert last.space_amplification < 1.5
    without = simulate(workload, TableSettings(purge_dead_ratio=1.0))
    assert without.purges < simulation.purges


@pytest.mark.slow
def test_merges_that_take_time_leave_room_for_others_and_lose_nothing() -> None:
    at_once = simulate(Workload(arrivals=equal(300, MB, 10_000)), TableSettings())
    slow = simulate(Workload(arrivals=equal(300, MB, 10_000), merge_bytes_per_second=MB / 2), TableSettings())
    assert slow.samples[-1].live_bytes == pytest.approx(at_once.samples[-1].live_bytes, rel=0.001)
    assert slow.samples[-1].stored_bytes == pytest.approx(slow.samples[-1].live_bytes, rel=0.001)
    assert 8 < deepest(slow) <= 24
    far_too_slow = simulate(Workload(arrivals=equal(300, MB, 10_000), merge_bytes_per_second=MB / 100), TableSettings())
    assert deepest(far_too_slow) > 50


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["tiered", "leveled"])
def test_the_other_policies_keep_the_budget_too_and_write_more(policy: str) -> None:
    auto = simulate(Workload(arrivals=equal(400)), TableSettings())
    other = simulate(Workload(arrivals=equal(400)), TableSettings(merge=policy))
    assert deepest(other) <= 8
    assert other.samples[-1].merged_bytes > auto.samples[-1].merged_bytes


def test_a_run_repeats_exactly() -> None:
    workload = Workload(arrivals=equal(150), update_share=0.5, partitions=2, queries_per_hour=10)
    assert simulate(workload, TableSettings()) == simulate(workload, TableSettings())


def test_a_recorded_timeline_may_be_uneven() -> None:
    arrivals = [
        Arrival(at_ms=1000 * number**2, rows=1 + 997 * number % 5000, bytes=1000 + 99_991 * number % MB)
        for number in range(1, 200)
    ]
    simulation = simulate(Workload(arrivals=arrivals, queries_per_hour=60), TableSettings(read_budget=4))
    last = simulation.samples[-1]
    assert last.ingested_bytes == sum(arrival.bytes for arrival in arrivals)
    assert deepest(simulation) <= 4
    assert simulation.parts_read > 0


# -- with a local disk -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_with_a_local_disk_less_goes_to_the_store_and_readers_here_meet_as_few_runs() -> None:
    arrivals = equal(400)
    without = simulate(Workload(arrivals=arrivals), TableSettings())
    simulation = simulate(Workload(arrivals=arrivals, volatile=True), TableSettings())
    last = simulation.samples[-1]
    assert last.merged_bytes < 0.6 * without.samples[-1].merged_bytes
    assert simulation.merged_to_reference <= 1.3
    assert deepest(simulation) <= 8
    assert max(sample.depth_max_elsewhere for sample in simulation.samples) <= budget_elsewhere(8) == 20
    elsewhere = [sample.depth_average_elsewhere for sample in simulation.samples]
    assert sum(elsewhere) / len(elsewhere) < 2 * 8
    assert last.live_bytes == last.stored_bytes == last.ingested_bytes
    assert 0 < last.local_bytes < 10 * last.ingested_bytes


def test_a_disk_that_is_lost_costs_local_work_and_nothing_else() -> None:
    lost = [60_000 * number for number in (50, 51, 199)]
    workload = Workload(arrivals=equal(200), volatile=True)
    kept, simulation = (simulate(each, TableSettings()) for each in (workload, replace(workload, disk_lost_ms=lost)))
    for name in ("merged_bytes", "stored_bytes", "live_bytes", "depth_max_elsewhere"):
        assert getattr(simulation.samples[-1], name) == getattr(kept.samples[-1], name)
    assert simulation.samples[-1].local_bytes > kept.samples[-1].local_bytes
    assert deepest(simulation) <= 8


def test_what_dies_in_the_store_dies_on_the_local_disk() -> None:
    workload = Workload(arrivals=equal(200), update_share=0.7, volatile=True)
    last = simulate(workload, TableSettings(plan_bytes_max=600 * MB)).samples[-1]
    assert last.live_bytes == pytest.approx(200 * 10_000 * 0.3, rel=0.05)


@pytest.mark.slow
def test_a_small_disk_and_old_parts_cost_uploads() -> None:
    workload = Workload(arrivals=equal(200), volatile=True)
    least = simulate(workload, TableSettings()).samples[-1].merged_bytes
    assert simulate(workload, TableSettings(upload_after_seconds=600)).samples[-1].merged_bytes > least
    assert simulate(workload, TableSettings(volatile_bytes_max=200_000)).samples[-1].merged_bytes > least


def test_merges_that_take_time_do_not_stand_in_each_others_way() -> None:
    workload = Workload(arrivals=equal(300, MB, 10_000), merge_bytes_per_second=MB / 2, volatile=True)
    last = simulate(workload, TableSettings()).samples[-1]
    assert last.live_bytes == pytest.approx(300 * MB, rel=0.001)


def test_steady_arrivals_are_as_many_as_asked_for() -> None:
    arrivals = steady(days=0.5, rows_per_second=10, flush_seconds=30)
    assert len(arrivals) == 1440 and arrivals[0] == Arrival(at_ms=30_000, rows=300, bytes=7_500)
    with pytest.raises(InvalidInput, match="hold no flush"):
        steady(days=0.0001, rows_per_second=10)


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    file = tmp_path / "plot.png"
    plot(simulate(Workload(arrivals=equal(50)), replace(TableSettings(), read_budget=4)), str(file), "fifty flushes")
    assert file.read_bytes().startswith(b"\x89PNG")

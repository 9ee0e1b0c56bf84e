"""The figures that everybody shows of a table: counted from the snapshot alone."""

from __future__ import annotations

from dataclasses import replace

from lakebed.coordination.table_figures import TableFigures, figures_of
from lakebed.log.claims import Claim
from tests.planning.tables import MB, ORDERED, UNORDERED, change_part, part, table

NOW = 1_000_000


def test_an_empty_table_has_no_ages_and_takes_no_space() -> None:
    figures = figures_of(table([]), NOW)
    assert (figures.parts, figures.rows, figures.bytes, figures.read_budget) == (0, 0, 0, 8)
    assert (figures.tail_age_seconds, figures.compaction_lag_seconds, figures.claim_age_seconds) == (None, None, None)
    assert figures.space_amplification == 1.0 and figures.dead_row_ratio == 0.0


def test_dead_rows_take_space_and_are_not_counted_as_rows() -> None:
    parts = [part("a-1", 0, 9, 4 * MB, rows=1000, dead=750), part("b-2", 0, 9, 2 * MB, level=1, sort_key_version=1)]
    figures = figures_of(table(parts, tail=[change_part("c", 0, 9, MB, 10, modified_ms=NOW - 5000)]), NOW)
    assert (figures.rows, figures.dead_rows, figures.dead_row_ratio) == (1250, 750, 0.375)
    assert (figures.bytes, figures.live_bytes) == (7 * MB, 4.0 * MB)
    assert figures.space_amplification == 7 / 4
    assert (figures.parts_by_level, figures.bytes_by_level) == ({0: 1, 1: 1}, {0: 4 * MB, 1: 2 * MB})
    assert (figures.tail_parts, figures.tail_rows, figures.tail_bytes, figures.tail_age_seconds) == (1, 10, MB, 5.0)
    assert figures.unsorted_parts == 1
    assert figures_of(table(parts, UNORDERED), NOW).unsorted_parts == 0, "there is no order to be sorted by"


def test_a_part_that_a_live_claim_covers_lags_no_more() -> None:
    old, new = part("old-1", 0, 9, modified_ms=NOW - 60_000), part("new-2", 0, 9, modified_ms=NOW - 1000)
    snapshot = table([old, new], ORDERED)
    assert figures_of(snapshot, NOW).compaction_lag_seconds == 60.0
    for lease_ms, lag, live in ((NOW + 1, 1.0, 1), (NOW - 1, 60.0, 0)):
        claim = Claim(
            id="c", replica="r", sources=("old-1",), level=1, since_ms=NOW - 2000, lease_ms=lease_ms, volatile=True
        )
        claimed = replace(snapshot, domains={claim.domain: claim.to_action().configuration})
        figures = figures_of(claimed, NOW)
        assert (figures.compaction_lag_seconds, figures.claim_age_seconds) == (lag, 2.0)
        assert (figures.claims_live, figures.claims_expired, figures.volatile_claims) == (live, 1 - live, live)


def test_what_says_more_of_a_table_is_built_from_its_figures() -> None:
    figures = figures_of(table([part("a-1", 0, 9)]), NOW)
    assert TableFigures(**figures.as_fields()) == figures

"""Settling, merging, reclustering, and the processes that do so as long as they run.

    scheduler          which of many jobs gets a thread (``ReadyJobs``); a table that waits has none
      table maintainer   when: cycles, merges and chores of one table, after each version of its log (``table_maintainer``)
        settler            one settle at a time: whether it is due (``planning.settling``), where keys are found
          settle             one act: change parts join the base, the rows that they replace are marked dead
        merge runner       the next plan that no other worker has taken (``planning.planner``), and its execution
          merge              one act: claim, kernel (``merge.kernel``), commit; ``volatile``: its output stays on this host

``maintenance`` begins and ends the maintainers of one table or of many. In ``maintenance_query`` batches of a streaming query,
which reads ``log_source``, run the cycles of one table in place of the scheduler. ``compaction`` chooses mergers, kernels and
chores by a table's settings. What is planned is decided in ``lakebed.planning``, which is pure.
"""

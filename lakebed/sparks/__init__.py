"""Spark, whichever version it is: all of lakebed that reaches into its JVM, or that depends on its version.

    versions           which Spark this is, and what belongs to it: jars, what it can and can't
    session            settings, and a session that starts
    java               Java for a pipeline: how it starts, how PySpark reaches it, how it ends
    jvm                the JVM behind a session; whether the session still runs; queries as Spark parses and plans them
    compiled           Java classes of ours, compiled in the driver: PartIndex.java, the files that a scan of a table reads, and
                       CheckpointFiles.java, how a query writes its checkpoint
    streams            streaming data sources; older_streams is their shape before Spark 4.2
    cluster            jobs on a cluster, and a cluster that is away

No other room imports py4j or names an internal of PySpark. Nothing here imports PySpark before it is called, so commands that
need no Spark do not wait for it.
"""

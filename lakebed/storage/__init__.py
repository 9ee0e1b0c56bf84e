"""Files of parts on local disk and in S3, the object-store client, caches, folders of processes, DuckDB connections."""

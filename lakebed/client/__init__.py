"""A client of the service (``lakebed serve api``), with the names that the library has.

lake = lakebed.connect("https://lake.example:9467", token="…")
table = lake.table("public.orders")
table.inspect.timeline(last=5)
table.settle()
"""

from lakebed.client.remote import RemoteJob, RemoteTable, RemoteWarehouse, Scan, connect

__all__ = ["RemoteJob", "RemoteTable", "RemoteWarehouse", "Scan", "connect"]

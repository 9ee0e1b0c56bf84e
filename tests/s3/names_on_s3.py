"""A driver: tables by name in Spark SQL whose catalog is a prefix of a bucket.

    python names_on_s3.py s3://BUCKET/PREFIX

Prints one line of JSON: what each statement that reads gave.
"""

from __future__ import annotations

import json
import sys

import lakebed
from lakebed.sparks.jvm import jvm_of

STATEMENTS = """
create table lake.shop.orders (id bigint not null, region string, n bigint)
    using lakebed tblproperties ('lakebed.keys' = 'id')
insert into lake.shop.orders values (1, 'a', 10), (2, 'b', 20), (3, 'c', 30)
create table lake.shop.regions using lakebed as select region, n from lake.shop.orders where id < 3
call lake.system.settle('shop.orders')
update lake.shop.orders set n = n + 1 where id = 2
merge into lake.shop.orders o using (select * from values (3, 'z', 5), (4, 'd', 40) as v (id, region, n)) v on o.id = v.id
    when matched then delete when not matched then insert *
"""
READS = {
    "tables": "select tableName from {tables} order by 1",
    "rows": "select * from lake.shop.orders order by id",
    "at a version": "select count(*) from lake.shop.orders version as of 0",
    "joined": "select o.id from lake.shop.orders o join lake.shop.regions r on o.region = r.region order by 1",
    "parts": "select distinct state from lake.shop.orders.parts order by 1",
}


def main(folder: str) -> None:
    spark = lakebed.spark("names", "local[2]", s3=True, catalogs={"lake": folder})
    spark.sparkContext.setLogLevel("ERROR")

    def read(name: str) -> list[list[object]]:
        spark.sql("show tables in lake.shop").createOrReplaceTempView("tables")
        return [list(row) for row in spark.sql(READS[name].format(tables="tables")).collect()]

    for statement in STATEMENTS.strip().replace("\n    ", " ").splitlines():
        spark.sql(statement)
    found: dict[str, object] = {name: read(name) for name in READS}
    jvm_of(spark).lakebed.Python.set(None)  # as in a driver without Python
    found["settled"] = {name: read(name) for name in ("tables", "rows", "at a version")}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])

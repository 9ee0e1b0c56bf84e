package lakebed;

import java.util.Map;

import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What format("lakebed") and USING lakebed name: the tables of catalogs of ours, and no others. */
public final class DefaultSource implements TableProvider {
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        throw refusal();
    }

    public Table getTable(StructType schema, Transform[] partitions, Map properties) {
        throw refusal();
    }

    private static RuntimeException refusal() {
        return Python.failure("the format lakebed is that of tables by name: saveAsTable(\"lake.shop.orders\") and"
            + " spark.table(\"lake.shop.orders\") in a catalog of lakebed's (docs/guides/sql.md); a path is opened by"
            + " lakebed.open(path), whose methods are read(spark) and apply(rows)");
    }
}

package lakebed;

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.ReplaceTable;
import org.apache.spark.sql.catalyst.plans.logical.ReplaceTableAsSelect;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/** Refuses what Spark would do in two steps of which the first can't be taken back: it drops a table, then creates another. */
final class Refusals extends AbstractFunction1 {
    public Object apply(Object plan) {
        boolean replaces = plan instanceof ReplaceTable || plan instanceof ReplaceTableAsSelect;
        if (replaces && Creations.catalogOf((LogicalPlan) plan) != null) {
            throw Python.failure("a table of lakebed's is replaced by the rows of a query with the same columns, and keeps its"
                + " properties and partitions: INSERT OVERWRITE replaces its rows, ALTER TABLE changes its columns and"
                + " properties, and after DROP TABLE … PURGE its name is free");
        }
        return BoxedUnit.UNIT;
    }
}

package lakebed;

import org.apache.spark.sql.catalyst.analysis.ResolvedIdentifier;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.ReplaceTable;
import org.apache.spark.sql.catalyst.plans.logical.ReplaceTableAsSelect;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/** Refuses what Spark would do in two steps of which the first can't be taken back: it drops a table, then creates another. */
final class Refusals extends AbstractFunction1 {
    public Object apply(Object plan) {
        if (plan instanceof ReplaceTable || plan instanceof ReplaceTableAsSelect) {
            Object name = ((LogicalPlan) plan).children().head();
            if (name instanceof ResolvedIdentifier && ((ResolvedIdentifier) name).catalog() instanceof Catalog) {
                throw Python.failure("a table of lakebed's is not replaced by another one: INSERT OVERWRITE replaces its rows, "
                    + "ALTER TABLE changes its columns, and after DROP TABLE … PURGE its name is free");
            }
        }
        return BoxedUnit.UNIT;
    }
}

package lakebed;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

import org.apache.spark.sql.catalyst.analysis.EliminateSubqueryAliases;
import org.apache.spark.sql.catalyst.analysis.ResolveRowLevelCommandAssignments;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.DeleteFromTable;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MergeIntoTable;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.UpdateTable;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.write.RowLevelOperationTable;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/**
 * After the names of a plan are resolved: puts lakebed's own scan in the place of each table that is read, and a Statement in the
 * place of a command that brings rows. What a Statement reads is analyzed when it runs.
 */
public final class Rules extends Rule {
    private final SparkSession session;

    Rules(SparkSession session) {
        this.session = session;
    }

    public TreeNode apply(TreeNode node) {
        final LogicalPlan plan = (LogicalPlan) node;
        if (plan instanceof V2WriteCommand) {
            DataSourceV2Relation target = target(((V2WriteCommand) plan).table());
            if (target != null) return plan.resolved() ? new Statement(plan, target) : plan;
        }
        if (plan instanceof Statement || isRowLevel(plan)) return plan;
        sayWhatIsMissing(plan);
        return SettledTable.read(read(streams(plan)));
    }

    /**
     * While names are resolved: a Statement in the place of DELETE, UPDATE and MERGE of one of our tables. Rules of others,
     * Delta's among them, look at such commands whatever their table is.
     */
    static final class RowLevel extends Rule {
        public TreeNode apply(TreeNode node) {
            LogicalPlan plan = (LogicalPlan) node;
            if (!isRowLevel(plan) || !plan.resolved()) return plan;
            DataSourceV2Relation target = target(EliminateSubqueryAliases.apply((LogicalPlan) plan.children().head()));
            return target == null ? plan : rowLevel(plan, target);
        }
    }

    /** A statement about rows by their keys, with all columns assigned in their types, as Spark's rewrite needs it. */
    private static Statement rowLevel(LogicalPlan plan, final DataSourceV2Relation target) {
        NamedTable table = tableOf(target);
        if (table.isMetadata()) throw Python.failure(table.name() + " is a metadata table: it can't be changed");
        Object[] fields = new Object[target.productArity()];
        for (int i = 0; i < fields.length; i++) fields[i] = i == 0 ? new NamedTable.Rewritable(table) : target.productElement(i);
        final DataSourceV2Relation twin = (DataSourceV2Relation) target.makeCopy(fields);
        LogicalPlan named = (LogicalPlan) ((LogicalPlan) plan.children().head()).transformUp(new Replacing() {
            LogicalPlan instead(DataSourceV2Relation relation) {
                return twin;
            }
        });
        ArrayList children = new ArrayList(CollectionConverters.asJava(plan.children()));
        children.set(0, named);
        LogicalPlan rewritable = (LogicalPlan) plan.withNewChildren(seq(children));
        Statement statement = new Statement(ResolveRowLevelCommandAssignments.apply(rewritable), twin);
        if (table.combines()) Python.ask("require_verb", new String[0], statement);
        return statement;
    }

    static boolean isRowLevel(LogicalPlan plan) {
        return plan instanceof DeleteFromTable || plan instanceof UpdateTable || plan instanceof MergeIntoTable;
    }

    /** The relation, if it is of one of our tables; else null. */
    static DataSourceV2Relation target(Object plan) {
        if (!(plan instanceof DataSourceV2Relation)) return null;
        return tableOf((DataSourceV2Relation) plan) == null ? null : (DataSourceV2Relation) plan;
    }

    static NamedTable tableOf(DataSourceV2Relation relation) {
        Object table = relation.table();
        if (table instanceof RowLevelOperationTable) table = ((RowLevelOperationTable) table).table();
        if (table instanceof NamedTable.Rewritable) table = ((NamedTable.Rewritable) table).table;
        return table instanceof NamedTable ? (NamedTable) table : null;
    }

    /** The plan with a scan for each of our tables. */
    private LogicalPlan read(LogicalPlan plan) {
        return (LogicalPlan) plan.resolveOperatorsUp(new Replacing() {
            LogicalPlan instead(DataSourceV2Relation relation) {
                NamedTable table = tableOf(relation);
                Object plan = Python.ask("scan", new String[] {table.handle()}, session);
                return relabelled((LogicalPlan) plan, relation.output());
            }
        });
    }

    /** The plan with the stream of its changes for each of our tables that is read as one: readStream.table(name). */
    private LogicalPlan streams(LogicalPlan plan) {
        return (LogicalPlan) plan.resolveOperatorsUp(new AbstractPartialFunction() {
            public boolean isDefinedAt(Object node) {
                return node instanceof StreamingRelationV2 && ((StreamingRelationV2) node).table() instanceof NamedTable;
            }

            public Object applyOrElse(Object node, scala.Function1 otherwise) {
                if (!isDefinedAt(node)) return otherwise.apply(node);
                StreamingRelationV2 relation = (StreamingRelationV2) node;
                NamedTable table = (NamedTable) relation.table();
                table.requireNewest();
                if (table.isMetadata()) throw Python.failure(table.name() + " is a metadata table: it can't be read as a stream");
                ArrayList texts = new ArrayList();
                texts.add(table.handle());
                texts.add(table.name());
                Iterator options = relation.extraOptions().entrySet().iterator();
                while (options.hasNext()) {
                    Map.Entry option = (Map.Entry) options.next();
                    texts.add(option.getKey());
                    texts.add(option.getValue());
                }
                Object stream = Python.ask("stream", (String[]) texts.toArray(new String[0]), session);
                return relabelled((LogicalPlan) stream, relation.output());
            }
        });
    }

    /** Replaces the relations of our tables in a plan. */
    abstract static class Replacing extends AbstractPartialFunction {
        abstract LogicalPlan instead(DataSourceV2Relation relation);

        public boolean isDefinedAt(Object plan) {
            return target(plan) != null;
        }

        public Object applyOrElse(Object plan, scala.Function1 otherwise) {
            return isDefinedAt(plan) ? instead((DataSourceV2Relation) plan) : otherwise.apply(plan);
        }
    }

    /** The plan, whose columns are known by the ids that the rest of a query has for these attributes. */
    static LogicalPlan relabelled(LogicalPlan plan, Seq attributes) {
        List from = CollectionConverters.asJava(plan.output());
        List to = CollectionConverters.asJava(attributes);
        ArrayList columns = new ArrayList();
        for (int i = 0; i < to.size(); i++) {
            Attribute wanted = (Attribute) to.get(i);
            Attribute found = null;
            for (int j = 0; j < from.size() && found == null; j++) {
                if (((Attribute) from.get(j)).name().equals(wanted.name())) found = (Attribute) from.get(j);
            }
            if (found == null) throw new IllegalStateException("no column " + wanted.name() + " in " + plan.output());
            boolean isSame = found.exprId().equals(wanted.exprId());
            columns.add(isSame ? found : alias(found, wanted.name(), wanted.exprId(), wanted.qualifier()));
        }
        return new Project(seq(columns), plan);
    }

    static Alias alias(Expression of, String name, ExprId id, Seq qualifier) {
        return new Alias(of, name, id, qualifier, Option.empty(), seq(new ArrayList()));
    }

    static Seq seq(List list) {
        return CollectionConverters.asScala(list).toSeq();
    }

    /** For a table that is not there: an error that has the nearest names. */
    private void sayWhatIsMissing(LogicalPlan plan) {
        List leaves = CollectionConverters.asJava(plan.collectLeaves());
        for (int i = 0; i < leaves.size(); i++) {
            if (!(leaves.get(i) instanceof UnresolvedRelation)) continue;
            List names = CollectionConverters.asJava(((UnresolvedRelation) leaves.get(i)).multipartIdentifier());
            List found = Catalog.inCatalog(session, names);
            if (found == null) continue;
            Catalog catalog = (Catalog) found.get(0);
            String name = String.join(".", found.subList(1, found.size()));
            if (!Python.isThere()) {
                catalog.settled().sayWhatIsMissing(name);
                continue;
            }
            String sentence = (String) Python.ask("missing", new String[] {catalog.name(), catalog.warehouse(), name}, null);
            if (sentence.length() > 0) throw Python.failure(sentence);
        }
    }
}

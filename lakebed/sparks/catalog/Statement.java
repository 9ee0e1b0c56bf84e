package lakebed;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;
import org.apache.spark.sql.catalyst.analysis.RewriteMergeIntoTable$;
import org.apache.spark.sql.catalyst.ProjectingInternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BinaryComparison;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.EqualNullSafe;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.EvalMode$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.expressions.RaiseError;
import org.apache.spark.sql.catalyst.plans.logical.AppendData;
import org.apache.spark.sql.catalyst.plans.logical.Assignment;
import org.apache.spark.sql.catalyst.plans.logical.DeleteFromTable;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.MergeIntoTable;
import org.apache.spark.sql.catalyst.plans.logical.OverwriteByExpression;
import org.apache.spark.sql.catalyst.plans.logical.OverwritePartitionsDynamic;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.UpdateTable;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.plans.logical.WriteDelta;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.catalyst.util.RowDeltaUtils;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.command.ListFilesCommand;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.LongType$;
import org.apache.spark.sql.types.StringType$;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A command that writes one of our tables. Python runs it (lakebed/names/statements.py), and asks here for the rows that Spark
 * computes.
 *
 * It inherits what makes a node of a plan a command from one of Spark's own, of which it overrides what it does: the traits of
 * Scala that do the same can't be implemented in Java.
 */
public final class Statement extends ListFilesCommand {
    private static final String OPERATION = "_lakebed_operation";
    private static final String OLD = "_lakebed_old_";

    private final LogicalPlan original; // as Spark has resolved it
    private final DataSourceV2Relation target;
    private final Seq output;
    private SparkSession session; // that runs it
    private boolean isFew;

    Statement(LogicalPlan original, DataSourceV2Relation target) {
        super(Rules.seq(new ArrayList()));
        this.original = original;
        this.target = target;
        table().requireNewest();
        StructType counts = new StructType();
        String[] names = {"num_affected_rows", "num_updated_rows", "num_deleted_rows", "num_inserted_rows", "num_rows_read"};
        for (int i = 0; i < names.length; i++) counts = counts.add(names[i], LongType$.MODULE$, true);
        this.output = DataTypeUtils.toAttributes(counts);
    }

    // A command of Spark's -------------------------------------------------------------------------------------------

    public Seq output() {
        return output;
    }

    public Seq run(org.apache.spark.sql.SparkSession session) {
        this.session = (SparkSession) session;
        String[] counts = ((String) Python.ask("statement", new String[] {table().handle()}, this)).split(",");
        Object[] row = new Object[counts.length];
        for (int i = 0; i < row.length; i++) row[i] = counts[i].startsWith("-") ? null : Long.valueOf(counts[i]);
        ArrayList rows = new ArrayList();
        rows.add(RowFactory.create(row));
        return Rules.seq(rows);
    }

    public Seq innerChildren() {
        ArrayList plans = new ArrayList();
        plans.add(original);
        return Rules.seq(plans);
    }

    public String nodeName() {
        return "Lakebed " + kind() + " " + table().name();
    }

    public String simpleString(int maxFields) {
        return nodeName();
    }

    public LogicalPlan clone() {
        return this; // it never changes
    }

    public int hashCode() {
        return System.identityHashCode(this);
    }

    public boolean equals(Object other) {
        return this == other;
    }

    public boolean canEqual(Object other) {
        return other instanceof Statement;
    }

    // What Python asks -----------------------------------------------------------------------------------------------

    public SparkSession session() {
        return session;
    }

    public NamedTable table() {
        return Rules.tableOf(target);
    }

    public String kind() {
        if (original instanceof DeleteFromTable) return "DELETE";
        if (original instanceof UpdateTable) return "UPDATE";
        if (original instanceof MergeIntoTable) return "MERGE";
        if (original instanceof AppendData) return "INSERT";
        if (original instanceof OverwritePartitionsDynamic) return "OVERWRITE PARTITIONS";
        if (original instanceof OverwriteByExpression) return "OVERWRITE";
        throw new IllegalStateException(original.nodeName());
    }

    /** The condition of DELETE and UPDATE, in SQL; null if there is none. */
    public String condition() {
        return where() == null ? null : where().sql();
    }

    private Expression where() {
        if (original instanceof DeleteFromTable) return ((DeleteFromTable) original).condition();
        if (!(original instanceof UpdateTable)) return null;
        Option some = ((UpdateTable) original).condition();
        return some.isDefined() ? (Expression) some.get() : null;
    }

    /**
     * What a verb of the table is asked that does the same as a DELETE or UPDATE: the condition, then the columns that are set
     * and their values, by turns. Null if that may be something else in its SQL.
     */
    public List asVerb() {
        ArrayList texts = new ArrayList();
        texts.add(where() == null ? "true" : Dialect.of(where()));
        List columns = CollectionConverters.asJava(target.output());
        for (int i = 0; i < columns.size() && original instanceof UpdateTable; i++) {
            Attribute column = (Attribute) columns.get(i);
            Expression value = assigned(column);
            if (value instanceof Attribute && ((Attribute) value).exprId().equals(column.exprId())) continue;
            texts.add(column.name());
            texts.add(Dialect.of(value));
        }
        return original instanceof MergeIntoTable || texts.contains(null) ? null : texts;
    }

    /**
     * The values of columns that the rows have which an OVERWRITE replaces, as texts, null for null; none if it is of all rows.
     * Null if it says that in another way.
     */
    public Map replaced() {
        Map values = new HashMap();
        ArrayList conditions = new ArrayList();
        collect(((OverwriteByExpression) original).deleteExpr(), conditions);
        for (int i = 0; i < conditions.size(); i++) {
            Expression one = (Expression) conditions.get(i);
            if (one.equals(Literal$.MODULE$.TrueLiteral())) continue;
            boolean isEqual = one instanceof EqualNullSafe || one instanceof EqualTo;
            Expression left = isEqual ? (Expression) ((BinaryComparison) one).left() : null;
            Expression right = isEqual ? (Expression) ((BinaryComparison) one).right() : null;
            if (!(left instanceof Attribute) || !right.foldable()) return null;
            Expression text = new Cast(right, StringType$.MODULE$, Option.apply("UTC"), EvalMode$.MODULE$.LEGACY());
            Object value = text.eval(null);
            values.put(((Attribute) left).name(), value == null ? null : value.toString());
        }
        return values;
    }

    /** The condition of an OVERWRITE in the SQL of a table's verbs; null if it may mean something else there. */
    public String replacedWhere() {
        return Dialect.of(((OverwriteByExpression) original).deleteExpr());
    }

    /** Whether a MERGE says what becomes of rows that the source lacks. */
    public boolean concernsAllRows() {
        return original instanceof MergeIntoTable && ((MergeIntoTable) original).notMatchedBySourceActions().nonEmpty();
    }

    /**
     * The rows that are inserted, or those that a MERGE has as its source: computed once, and kept. In one partition if they are
     * few, as Spark then plans no shuffle.
     */
    public Dataset source(long few) {
        Dataset rows = Dataset$.MODULE$.ofRows(session, sourcePlan());
        Option most = rows.queryExecution().optimizedPlan().maxRows();
        rows = rows.localCheckpoint(false); // the first job that reads it computes it
        isFew = most.isDefined() && ((Number) most.get()).longValue() <= few
            || rows.queryExecution().toRdd().count() <= few;
        return isFew ? rows.coalesce(1) : rows;
    }

    /** Whether `source` has found few rows. */
    public boolean isFew() {
        return isFew;
    }

    private LogicalPlan sourcePlan() {
        if (original instanceof V2WriteCommand) return ((V2WriteCommand) original).query();
        return ((MergeIntoTable) original).sourceTable();
    }

    /** The values of the target's keys that rows of the source are compared with; null if the condition is not about all keys. */
    public Dataset keysOfSource(Dataset source) {
        List equal = new ArrayList();
        collect(((MergeIntoTable) original).mergeCondition(), equal);
        String[] keys = table().keys();
        ArrayList columns = new ArrayList();
        for (int k = 0; k < keys.length; k++) {
            Expression value = null;
            for (int i = 0; i < equal.size() && value == null; i++) {
                if (!(equal.get(i) instanceof EqualTo)) continue;
                EqualTo one = (EqualTo) equal.get(i);
                if (isKey(one.left(), keys[k])) value = ofSource(one.right());
                else if (isKey(one.right(), keys[k])) value = ofSource(one.left());
            }
            if (value == null) return null;
            columns.add(named(value, keys[k]));
        }
        LogicalPlan rows = Rules.relabelled(source.logicalPlan(), sourcePlan().output());
        return Dataset$.MODULE$.ofRows(session, new Project(Rules.seq(columns), rows));
    }

    private static void collect(Expression condition, List all) {
        if (condition instanceof And) {
            collect((Expression) ((And) condition).left(), all);
            collect((Expression) ((And) condition).right(), all);
        } else {
            all.add(condition);
        }
    }

    private boolean isKey(Object side, String key) {
        return key.equals(columnOf(side));
    }

    /** The name of the target's column that this is, which a statement may write in another case; null if it is none. */
    private String columnOf(Object expression) {
        List columns = CollectionConverters.asJava(target.output());
        for (int i = 0; i < columns.size() && expression instanceof Attribute; i++) {
            Attribute column = (Attribute) columns.get(i);
            if (column.exprId().equals(((Attribute) expression).exprId())) return column.name();
        }
        return null;
    }

    private Expression ofSource(Object side) {
        Expression value = (Expression) side;
        return value.references().subsetOf(sourcePlan().outputSet()) ? value : null;
    }

    /**
     * What the statement changes: the operation (1 delete, 2 update, 3 insert); the columns of the new row, or of the one that
     * goes, but for a MERGE; and, by OLD and a number, what the row that is replaced or goes is known by: its keys, or its place.
     *
     * `rows` are those of the target that the statement may concern, `source` those of a MERGE.
     */
    public Dataset changes(Dataset rows, Dataset source) {
        LogicalPlan plan = original instanceof MergeIntoTable ? merged(rows, source) : changed(rows);
        return Dataset$.MODULE$.ofRows(session, plan);
    }

    private LogicalPlan changed(Dataset rows) {
        boolean deletes = original instanceof DeleteFromTable;
        List attributes = CollectionConverters.asJava(target.output());
        List known = rowId(rows);
        ArrayList all = new ArrayList(attributes);
        if (table().keys().length == 0) all.addAll(known);
        LogicalPlan plan = Rules.relabelled(rows.logicalPlan(), Rules.seq(all));
        if (where() != null) plan = new Filter(where(), plan);
        ArrayList columns = new ArrayList();
        int operation = deletes ? RowDeltaUtils.DELETE_OPERATION() : RowDeltaUtils.UPDATE_OPERATION();
        columns.add(named(Literal$.MODULE$.apply(Integer.valueOf(operation)), OPERATION));
        for (int i = 0; i < attributes.size(); i++) {
            Attribute column = (Attribute) attributes.get(i);
            columns.add(named(deletes ? column : assigned(column), column.name()));
        }
        for (int k = 0; k < known.size(); k++) columns.add(named(known.get(k), OLD + k));
        return new Project(Rules.seq(columns), plan);
    }

    /** What rows are known by: columns of the target, or of `rows` where these are the places that they have. */
    private List rowId(Dataset rows) {
        String[] names = table().rowId();
        List columns = CollectionConverters.asJava(table().keys().length > 0 ? target.output() : rows.logicalPlan().output());
        ArrayList out = new ArrayList();
        for (int k = 0; k < names.length; k++) {
            for (int i = 0; i < columns.size(); i++) {
                if (((Attribute) columns.get(i)).name().equals(names[k])) out.add(columns.get(i));
            }
        }
        return out;
    }

    /** The value that an UPDATE gives a column. */
    private Expression assigned(Attribute column) {
        List assignments = CollectionConverters.asJava(((UpdateTable) original).assignments());
        for (int i = 0; i < assignments.size(); i++) {
            Assignment one = (Assignment) assignments.get(i);
            if (one.key() instanceof Attribute && ((Attribute) one.key()).exprId().equals(column.exprId())) return one.value();
        }
        return (Expression) column;
    }

    private LogicalPlan merged(final Dataset rows, Dataset source) {
        ArrayList children = new ArrayList();
        children.add(((MergeIntoTable) original).targetTable());
        children.add(Rules.relabelled(source.logicalPlan(), sourcePlan().output()));
        LogicalPlan written = RewriteMergeIntoTable$.MODULE$.apply((LogicalPlan) original.withNewChildren(Rules.seq(children)));
        LogicalPlan query = (LogicalPlan) ((V2WriteCommand) written).query().transformUp(new Rules.Replacing() {
            LogicalPlan instead(DataSourceV2Relation relation) {
                return Rules.relabelled(withAll(relation.output(), rows), relation.output());
            }
        });
        return new Project(columns(written, query), query);
    }

    /** Rows of the target, with an error in the place of each column that they lack: it is none of `columnsRead`. */
    private static LogicalPlan withAll(Seq attributes, Dataset rows) {
        ArrayList columns = new ArrayList(CollectionConverters.asJava(rows.logicalPlan().output()));
        List there = Arrays.asList(rows.columns());
        List all = CollectionConverters.asJava(attributes);
        for (int i = 0; i < all.size(); i++) {
            Attribute one = (Attribute) all.get(i);
            if (there.contains(one.name())) continue;
            Expression error = new RaiseError(Literal$.MODULE$.apply("the column " + one.name() + " was not read"));
            Expression value = new Cast(error, one.dataType(), Option.apply("UTC"), EvalMode$.MODULE$.LEGACY());
            columns.add(named(value, one.name()));
        }
        return new Project(Rules.seq(columns), rows.logicalPlan());
    }

    /** The columns that the rows of `changes` need for a MERGE: keys, and what conditions and values speak of. */
    public String[] columnsRead() {
        Set names = new LinkedHashSet(Arrays.asList(table().rowId()));
        addColumns(original.expressions(), names);
        return (String[]) names.toArray(new String[0]);
    }

    private void addColumns(Seq expressions, Set names) {
        List all = CollectionConverters.asJava(expressions);
        for (int i = 0; i < all.size(); i++) {
            Expression one = (Expression) all.get(i);
            if (one instanceof Assignment) one = ((Assignment) one).value(); // what is assigned is not read
            if (columnOf(one) != null) names.add(columnOf(one));
            addColumns(one.children(), names);
        }
    }

    private Seq columns(LogicalPlan written, LogicalPlan query) {
        List output = CollectionConverters.asJava(query.output());
        List names = CollectionConverters.asJava(target.output());
        ArrayList columns = new ArrayList();
        if (!(written instanceof WriteDelta)) { // a MERGE that only inserts
            columns.add(named(Literal$.MODULE$.apply(Integer.valueOf(RowDeltaUtils.INSERT_OPERATION())), OPERATION));
            for (int i = 0; i < names.size(); i++) columns.add(named(output.get(i), ((Attribute) names.get(i)).name()));
            return Rules.seq(columns);
        }
        WriteDelta delta = (WriteDelta) written;
        for (int i = 0; i < output.size(); i++) {
            boolean isOperation = ((Attribute) output.get(i)).name().equals(RowDeltaUtils.OPERATION_COLUMN());
            if (isOperation) columns.add(named(output.get(i), OPERATION));
        }
        if (delta.projections().rowProjection().isDefined()) {
            List at = ordinals(delta.projections().rowProjection().get());
            for (int i = 0; i < at.size(); i++) {
                columns.add(named(output.get(((Number) at.get(i)).intValue()), ((Attribute) names.get(i)).name()));
            }
        }
        List at = ordinals(delta.projections().rowIdProjection());
        for (int i = 0; i < at.size(); i++) columns.add(named(output.get(((Number) at.get(i)).intValue()), OLD + i));
        return Rules.seq(columns);
    }

    private static List ordinals(Object projection) {
        return CollectionConverters.asJava(((ProjectingInternalRow) projection).colOrdinals().toSeq());
    }

    private static Alias named(Object expression, String name) {
        return Rules.alias((Expression) expression, name, NamedExpression$.MODULE$.newExprId(), Rules.seq(new ArrayList()));
    }
}

package lakebed;

import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.DataFrameReader;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.catalog.TruncatableTable;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.util.Utils;
import scala.jdk.javaapi.CollectionConverters;

/**
 * A table that Delta reads, by its folder. Rules puts Delta's plan in its place, so no command of Spark's or Delta's meets a
 * table that it could write.
 */
public final class SettledTable implements Table, SupportsRead, TruncatableTable {
    private static final String DELTA = "org.apache.spark.sql.delta.sources.DeltaDataSource";

    private final String name;
    private final String folder;
    private final LogicalPlan plan; // Delta's
    private Table inDelta; // what Delta says of it

    private SettledTable(String name, String folder, LogicalPlan plan) {
        this.name = name;
        this.folder = folder;
        this.plan = plan;
    }

    /** The table in a folder; `option` is Delta's for a version, with its value, null for the newest. */
    static SettledTable at(String name, Path folder, String option, String value) {
        if (!Utils.classIsLoadable(DELTA)) throw Python.failure(name + ": " + withoutDelta());
        if (!hasExtension()) {
            throw Python.failure(name + ": this session lacks Delta's extension, without which deleted rows would come back: set"
                + " spark.sql.extensions=lakebed.Extensions,io.delta.sql.DeltaSparkSessionExtension");
        }
        DataFrameReader reader = SparkSession.active().read().format("delta");
        if (option != null) reader = reader.option(option, value);
        LogicalPlan plan = ((Dataset) reader.load(folder.toString())).queryExecution().analyzed();
        return new SettledTable(name, folder.toString(), plan);
    }

    private static String withoutDelta() {
        String version = SparkSession.active().version();
        String release = version.substring(0, version.indexOf('.', 2));
        String remedy = "4.0 4.1 4.2".contains(release) ? "add --packages io.delta:delta-spark_" + release + "_2.13:4.4.0"
            : "Delta has no release for Spark " + release + " yet, so use a session of lakebed.spark() in Python, or Spark 4.2";
        return "this session lacks Delta's jar, which reads tables where the driver runs no lakebed: " + remedy;
    }

    /** Whether the session takes deletion vectors into account: Delta's extension does, and its jar alone does not. */
    private static boolean hasExtension() {
        List strategies = CollectionConverters.asJava(SparkSession.active().sessionState().planner().strategies());
        for (int i = 0; i < strategies.size(); i++) {
            if (strategies.get(i).getClass().getName().startsWith("org.apache.spark.sql.delta.")) return true;
        }
        return false;
    }

    /** The plan with Delta's for each of these tables. */
    static LogicalPlan read(LogicalPlan plan) {
        Object target = plan instanceof V2WriteCommand ? ((V2WriteCommand) plan).table() : null; // of a DataFrameWriterV2
        if (isOne(target)) throw Python.failure(((DataSourceV2Relation) target).table().name() + ": " + Python.NO_LAKEBED);
        return (LogicalPlan) plan.resolveOperatorsUp(new scala.runtime.AbstractPartialFunction() {
            public boolean isDefinedAt(Object node) {
                return isOne(node);
            }

            public Object applyOrElse(Object node, scala.Function1 otherwise) {
                if (!isDefinedAt(node)) return otherwise.apply(node);
                DataSourceV2Relation relation = (DataSourceV2Relation) node;
                return Rules.relabelled(((SettledTable) relation.table()).plan, relation.output());
            }
        });
    }

    private static boolean isOne(Object node) {
        return node instanceof DataSourceV2Relation && ((DataSourceV2Relation) node).table() instanceof SettledTable;
    }

    public String name() {
        return name;
    }

    public StructType schema() {
        return plan.schema();
    }

    public Transform[] partitioning() {
        return inDelta().partitioning();
    }

    public Map properties() {
        Map out = new HashMap(inDelta().properties());
        out.put("provider", "lakebed");
        out.put("location", folder);
        out.put("lakebed.reads", "settled");
        return out;
    }

    private Table inDelta() {
        if (inDelta == null) {
            Map options = new HashMap();
            options.put("path", folder);
            try {
                TableProvider delta = (TableProvider) Utils.classForName(DELTA, true, false).getConstructor(new Class[0])
                    .newInstance(new Object[0]);
                inDelta = delta.getTable(null, new Transform[0], options);
            } catch (ReflectiveOperationException error) {
                throw new IllegalStateException(error);
            }
        }
        return inDelta;
    }

    public Set capabilities() {
        Set out = new HashSet();
        out.add(TableCapability.BATCH_READ);
        return out;
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new NamedTable.Size(schema(), -1, plan.stats().sizeInBytes().longValue());
    }

    public boolean truncateTable() {
        throw Python.failure(name + ": " + Python.NO_LAKEBED);
    }
}

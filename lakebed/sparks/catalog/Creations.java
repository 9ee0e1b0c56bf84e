package lakebed;

import java.lang.reflect.Method;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;

import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.ResolvedIdentifier;
import org.apache.spark.sql.catalyst.analysis.UnresolvedIdentifier;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.plans.logical.CreateTable;
import org.apache.spark.sql.catalyst.plans.logical.CreateTableAsSelect;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.OverwriteByExpression$;
import org.apache.spark.sql.catalyst.plans.logical.ReplaceTableAsSelect;
import org.apache.spark.sql.catalyst.plans.logical.TableSpec;
import org.apache.spark.sql.catalyst.plans.logical.TableSpecBase;
import org.apache.spark.sql.catalyst.plans.logical.UnresolvedTableSpec;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation$;
import scala.Option;
import scala.Product;
import scala.jdk.javaapi.CollectionConverters;

/**
 * While names are resolved, of statements that make a table in a catalog of ours:
 *
 * CREATE OR REPLACE TABLE … AS SELECT creates a table that is not there, and overwrites the rows of one that has these columns.
 * So do df.write.mode("overwrite").saveAsTable and df.writeTo(…).createOrReplace.
 *
 * A DataFrame that names no format is of the session's default one, as SQL without USING is: the table is lakebed's.
 */
final class Creations extends Rule {
    private final SparkSession session;

    Creations(SparkSession session) {
        this.session = session;
    }

    /** The catalog of the table that a plan makes, if it is one of ours; else null. */
    static Catalog catalogOf(LogicalPlan plan) {
        Object name = plan.children().isEmpty() ? null : plan.children().head();
        if (!(name instanceof ResolvedIdentifier)) return null;
        Object catalog = ((ResolvedIdentifier) name).catalog();
        return catalog instanceof Catalog ? (Catalog) catalog : null;
    }

    public TreeNode apply(TreeNode node) {
        LogicalPlan plan = (LogicalPlan) node;
        boolean replaces = plan instanceof ReplaceTableAsSelect;
        boolean creates = replaces || plan instanceof CreateTableAsSelect || plan instanceof CreateTable;
        Catalog catalog = creates && Python.isThere() ? catalogOf(plan) : null;
        if (catalog == null) return plan;
        LogicalPlan ours = withoutFormat(plan);
        return replaces ? replaced((ReplaceTableAsSelect) ours, catalog) : ours;
    }

    /**
     * What a parser made of SQL. A format that SQL names is written in capitals from here on: so it is not taken for one that
     * only the session's default has named.
     */
    static Object parsed(Object plan, SparkSession session) {
        boolean creates = plan instanceof CreateTable || plan instanceof CreateTableAsSelect;
        if (!creates && !(plan instanceof ReplaceTableAsSelect)) return plan;
        Object name = ((LogicalPlan) plan).children().head();
        if (!(name instanceof UnresolvedIdentifier)) return plan;
        List parts = CollectionConverters.asJava(((UnresolvedIdentifier) name).nameParts());
        if (Catalog.inCatalog(session, parts) == null) return plan;
        String format = formatOf((LogicalPlan) plan);
        return format == null ? plan : withFormat((LogicalPlan) plan, Option.apply(format.toUpperCase(Locale.ROOT)));
    }

    /** Without the format that only the session's default has named. */
    private LogicalPlan withoutFormat(LogicalPlan plan) {
        String given = session.sessionState().conf().defaultDataSourceName();
        return given.equals(formatOf(plan)) ? withFormat(plan, Option.empty()) : plan;
    }

    private static String formatOf(LogicalPlan plan) {
        for (int i = 0; i < plan.productArity(); i++) {
            if (!(plan.productElement(i) instanceof TableSpecBase)) continue;
            Option format = ((TableSpecBase) plan.productElement(i)).provider();
            return format.isDefined() ? (String) format.get() : null;
        }
        return null;
    }

    private static LogicalPlan withFormat(LogicalPlan plan, Option format) {
        Object[] fields = new Object[plan.productArity()];
        for (int i = 0; i < fields.length; i++) {
            Object field = plan.productElement(i);
            fields[i] = field instanceof TableSpecBase ? withProvider((Product) field, format) : field;
        }
        return (LogicalPlan) plan.makeCopy(fields);
    }

    private static Object withProvider(Product spec, Option provider) {
        Object[] of = new Object[spec.productArity()];
        for (int i = 0; i < of.length; i++) {
            of[i] = spec.productElementName(i).equals("provider") ? provider : spec.productElement(i);
        }
        try {
            return spec.getClass().getConstructors()[0].newInstance(of);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    private static LogicalPlan replaced(ReplaceTableAsSelect plan, Catalog catalog) {
        if (!((LogicalPlan) plan.query()).resolved()) return plan;
        Identifier name = ((ResolvedIdentifier) plan.children().head()).identifier();
        if (!catalog.tableExists(name)) {
            return !plan.orCreate() ? plan : new CreateTableAsSelect(
                (LogicalPlan) plan.name(), plan.partitioning(), (LogicalPlan) plan.query(), plan.tableSpec(),
                plan.writeOptions(), false, plan.isAnalyzed());
        }
        NamedTable table;
        try {
            table = (NamedTable) catalog.loadTable(name);
        } catch (NoSuchTableException gone) {
            return plan;
        }
        if (!isLike(plan, catalog, name, table)) return plan;
        return overwrite(DataSourceV2Relation$.MODULE$.create(table, Option.apply(catalog), Option.apply(name)), plan);
    }

    /** Whether the table has the columns of the query, and all else that the statement says. */
    private static boolean isLike(ReplaceTableAsSelect plan, Catalog catalog, Identifier name, NamedTable table) {
        Set wanted = new HashSet();
        List columns = CollectionConverters.asJava(((LogicalPlan) plan.query()).output());
        for (int i = 0; i < columns.size(); i++) wanted.add(((Attribute) columns.get(i)).name());
        String[] names = table.schema().fieldNames();
        if (wanted.size() != names.length) return false;
        for (int i = 0; i < names.length; i++) if (!wanted.contains(names[i])) return false;
        List by = CollectionConverters.asJava(plan.partitioning());
        Transform[] has = table.partitioning();
        if (!by.isEmpty() && by.size() != has.length) return false;
        for (int i = 0; i < by.size(); i++) if (!((Transform) by.get(i)).describe().equals(has[i].describe())) return false;
        Object spec = plan.tableSpec();
        return catalog.has(name, CollectionConverters.asJava(spec instanceof TableSpec ? ((TableSpec) spec).properties()
            : ((UnresolvedTableSpec) spec).properties()));
    }

    /** By names. Releases of Spark differ in how many defaults follow. */
    private static LogicalPlan overwrite(Object relation, ReplaceTableAsSelect plan) {
        OverwriteByExpression$ companion = OverwriteByExpression$.MODULE$;
        Method[] methods = companion.getClass().getMethods();
        try {
            for (int i = 0; i < methods.length; i++) {
                if (!methods[i].getName().equals("byName")) continue;
                Object[] given = {relation, plan.query(), Literal$.MODULE$.TrueLiteral(), plan.writeOptions()};
                Object[] values = new Object[methods[i].getParameterTypes().length];
                System.arraycopy(given, 0, values, 0, given.length);
                for (int j = given.length; j < values.length; j++) {
                    values[j] = companion.getClass().getMethod("byName$default$" + (j + 1), new Class[0])
                        .invoke(companion, new Object[0]);
                }
                return (LogicalPlan) methods[i].invoke(companion, values);
            }
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
        throw new IllegalStateException("no byName");
    }
}

package lakebed;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.catalyst.plans.QueryPlan;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Identifier;
import scala.Function1;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/**
 * Spark's parser, and one statement more: ALTER TABLE … RECLUSTER becomes a CALL, if the table is in a catalog of ours. All else,
 * with every method that a version of Spark asks for, is left to the parser that the session has.
 */
public final class Parser implements InvocationHandler {
    private static final String SPACE = "(?:\\s++|--[^\n]*+\n|/\\*.*?\\*/)";
    private static final String NAME = "(?:`(?:[^`]++|``)++`|[^\\s.`;]++)";
    private static final Pattern RECLUSTER = Pattern.compile(
        SPACE + "*+ALTER" + SPACE + "++TABLE" + SPACE + "++(?<exists>IF" + SPACE + "++EXISTS" + SPACE + "++)?(?<table>" + NAME
            + "(?:\\." + NAME + ")*+)" + SPACE + "++RECLUSTER(?<final>" + SPACE + "++FINAL)?(?:" + SPACE + "++WHERE" + SPACE
            + "++(?<where>.+?))?\\s*+;?\\s*+",
        Pattern.CASE_INSENSITIVE | Pattern.DOTALL);
    private static final String NOTHING = "SELECT CAST(NULL AS BIGINT) AS version LIMIT 0";

    private final SparkSession session;
    private final ParserInterface spark;

    private Parser(SparkSession session, ParserInterface spark) {
        this.session = session;
        this.spark = spark;
    }

    static Object beside(SparkSession session, ParserInterface spark) {
        Class[] is = {ParserInterface.class};
        return Proxy.newProxyInstance(Parser.class.getClassLoader(), is, new Parser(session, spark));
    }

    public Object invoke(Object proxy, Method method, Object[] values) throws Throwable {
        Matcher found = method.getName().startsWith("parsePlan") ? RECLUSTER.matcher((String) values[0]) : null;
        List table = found != null && found.matches() ? tableIn(found.group("table")) : null;
        if (table == null) {
            Object plan = invoked(method, values);
            return found == null ? plan : Creations.parsed(plan, session);
        }
        Object[] instead = (Object[]) values.clone();
        String[] names = (String[]) table.subList(1, table.size()).toArray(new String[0]);
        Catalog catalog = (Catalog) table.get(0);
        instead[0] = found.group("exists") == null || isThere(catalog, names) ? call(catalog, found) : NOTHING;
        return ((QueryPlan) invoked(method, instead)).transformExpressions(new Texts(quoted(names), found.group("where")));
    }

    private Object invoked(Method method, Object[] values) throws Throwable {
        try {
            return method.invoke(spark, values);
        } catch (InvocationTargetException error) {
            throw error.getCause();
        }
    }

    /** Our catalog, then the names in it; null if it is in another one. */
    private List tableIn(String name) throws Throwable {
        return Catalog.inCatalog(session, CollectionConverters.asJava(spark.parseMultipartIdentifier(name)));
    }

    private static boolean isThere(Catalog catalog, String[] names) {
        String[] namespace = new String[names.length - 1];
        System.arraycopy(names, 0, namespace, 0, namespace.length);
        return catalog.tableExists(Identifier.of(namespace, names[namespace.length]));
    }

    private static String call(Catalog catalog, Matcher found) {
        return "CALL " + quoted(new String[] {catalog.name()}) + ".system.recluster(table => '" + Texts.TABLE + "', final => "
            + (found.group("final") != null) + (found.group("where") == null ? "" : ", where => '" + Texts.WHERE + "'") + ")";
    }

    private static String quoted(String[] names) {
        StringBuilder out = new StringBuilder();
        for (int i = 0; i < names.length; i++) out.append(i == 0 ? "`" : ".`").append(names[i].replace("`", "``")).append('`');
        return out.toString();
    }

    /** Puts texts of a user into a plan, in place of others: so none has to be quoted. */
    private static final class Texts extends AbstractPartialFunction {
        static final String TABLE = "the table", WHERE = "the condition";

        private final String table;
        private final String where;

        Texts(String table, String where) {
            this.table = table;
            this.where = where;
        }

        public boolean isDefinedAt(Object expression) {
            if (!(expression instanceof Literal)) return false;
            String text = String.valueOf(((Literal) expression).value());
            return text.equals(TABLE) || text.equals(WHERE);
        }

        public Object applyOrElse(Object expression, Function1 otherwise) {
            if (!isDefinedAt(expression)) return otherwise.apply(expression);
            boolean isTable = String.valueOf(((Literal) expression).value()).equals(TABLE);
            return Literal$.MODULE$.apply(isTable ? table : where);
        }
    }
}

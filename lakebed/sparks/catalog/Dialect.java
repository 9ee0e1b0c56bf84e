package lakebed;

import java.time.LocalDate;
import java.util.List;

import org.apache.spark.sql.catalyst.expressions.Add;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BinaryArithmetic;
import org.apache.spark.sql.catalyst.expressions.BinaryComparison;
import org.apache.spark.sql.catalyst.expressions.BinaryOperator;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.EqualNullSafe;
import org.apache.spark.sql.catalyst.expressions.EvalMode$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.In;
import org.apache.spark.sql.catalyst.expressions.IsNotNull;
import org.apache.spark.sql.catalyst.expressions.IsNull;
import org.apache.spark.sql.catalyst.expressions.Multiply;
import org.apache.spark.sql.catalyst.expressions.Not;
import org.apache.spark.sql.catalyst.expressions.Or;
import org.apache.spark.sql.catalyst.expressions.Subtract;
import org.apache.spark.sql.catalyst.expressions.objects.AssertNotNull;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.StringType;
import scala.jdk.javaapi.CollectionConverters;

/** What of Spark's expressions means the same in the SQL of a table's verbs, which is DuckDB's. */
final class Dialect {
    private static final long FIRST_DAY = LocalDate.of(1, 1, 1).toEpochDay(), LAST_DAY = LocalDate.of(9999, 12, 31).toEpochDay();

    /** The expression as a text; null for what may mean something else there. */
    static String of(Object given) {
        Expression one = (Expression) given;
        if (!isCommon(one.dataType()) && !(one instanceof Attribute)) return null;
        if (one instanceof Alias || one instanceof AssertNotNull) return of(one.children().head());
        if (one.foldable()) return literal(one.eval(null), one.dataType());
        if (one instanceof Attribute) return "\"" + ((Attribute) one).name().replace("\"", "\"\"") + "\"";
        List children = CollectionConverters.asJava(one.children());
        String[] texts = new String[children.size()];
        for (int i = 0; i < texts.length; i++) {
            boolean isOfAnyType = one instanceof IsNull || one instanceof IsNotNull;
            texts[i] = isOfAnyType || isCommon(((Expression) children.get(i)).dataType()) ? of(children.get(i)) : null;
            if (texts[i] == null) return null;
        }
        if (one instanceof Cast) {
            boolean widens = widens(((Expression) children.get(0)).dataType(), one.dataType());
            return widens ? "cast(" + texts[0] + " as " + one.dataType().sql() + ")" : null;
        }
        if (one instanceof Not) return "(not " + texts[0] + ")";
        if (one instanceof IsNull) return "(" + texts[0] + " is null)";
        if (one instanceof IsNotNull) return "(" + texts[0] + " is not null)";
        if (one instanceof In) return "(" + texts[0] + " in (" + String.join(", ", list(texts)) + "))";
        if (one instanceof EqualNullSafe) return "(" + texts[0] + " is not distinct from " + texts[1] + ")";
        boolean isSame = one instanceof And || one instanceof Or || one instanceof BinaryComparison || isArithmetic(one);
        return isSame ? "(" + texts[0] + " " + ((BinaryOperator) one).sqlOperator() + " " + texts[1] + ")" : null;
    }

    private static boolean widens(DataType from, DataType to) {
        if (to instanceof LongType) return from instanceof IntegerType;
        return from instanceof DecimalType && to instanceof DecimalType && ((DecimalType) to).isWiderThan(from);
    }

    private static String[] list(String[] texts) {
        String[] out = new String[texts.length - 1];
        System.arraycopy(texts, 1, out, 0, out.length);
        return out;
    }

    /** Whether it is of numbers for which both have the same results, and the same errors. */
    private static boolean isArithmetic(Expression one) {
        if (!(one instanceof Add || one instanceof Subtract || one instanceof Multiply)) return false;
        if (one.dataType() instanceof DoubleType) return true;
        boolean isWhole = one.dataType() instanceof IntegerType || one.dataType() instanceof LongType;
        return isWhole && ((BinaryArithmetic) one).evalMode().equals(EvalMode$.MODULE$.ANSI());
    }

    /** Whether values of the type compare alike. */
    private static boolean isCommon(DataType type) {
        if (type instanceof StringType) return ((StringType) type).isUTF8BinaryCollation();
        return type instanceof BooleanType || type instanceof DateType || type instanceof DecimalType
            || type instanceof DoubleType || type instanceof IntegerType || type instanceof LongType;
    }

    private static String literal(Object value, DataType type) {
        if (value == null) return "null";
        String text = value.toString();
        if (type instanceof StringType) return text.indexOf(0) < 0 ? "'" + text.replace("'", "''") + "'" : null;
        if (type instanceof DateType) {
            long day = ((Integer) value).longValue();
            return day < FIRST_DAY || day > LAST_DAY ? null : "date '" + LocalDate.ofEpochDay(day) + "'";
        }
        return type instanceof BooleanType ? text : "cast('" + text + "' as " + type.sql() + ")";
    }
}

package lakebed;

import java.util.function.BiFunction;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.sql.catalyst.trees.Origin;
import scala.Option;
import scala.collection.immutable.Map$;

/**
 * The way from these classes to lakebed in the Python of the driver (lakebed/sparks/names.py).
 *
 * What is asked is a word and some texts, as JSON: no object has to be asked for its values. An object of the JVM may go along.
 * The answer is an object of the JVM, a text, or an error: a text that begins with ERROR.
 */
public final class Python {
    static final String NO_LAKEBED = "the driver of this session runs no lakebed, so it reads the settled rows of tables and"
        + " does nothing else with them; use a session of lakebed.spark() in Python, or lakebed's service";
    private static final String ERROR = "\u0000error\u0000";
    private static final ObjectMapper JSON = new ObjectMapper();
    private static volatile BiFunction side;

    private static final String STAMP = "no stamp"; // whoever compiles this puts another text here

    private Python() {}

    /** Says what these classes were compiled from, and for: Python compares it with what it would compile. */
    public static String stamp() {
        return STAMP;
    }

    /** Python says where it is; null: it has ended. */
    public static void set(BiFunction python) {
        side = python;
    }

    public static boolean isThere() {
        return side != null;
    }

    /** The answer; throws Spark's AnalysisException with the sentence that Python gives for an error. */
    public static Object ask(String what, String[] texts, Object object) {
        BiFunction python = side;
        if (python == null) throw failure(NO_LAKEBED);
        ArrayNode question = JSON.createArrayNode().add(what);
        for (int i = 0; i < texts.length; i++) question.add(texts[i]);
        Object answer = python.apply(question.toString(), object);
        if (answer instanceof String && ((String) answer).startsWith(ERROR)) {
            throw failure(((String) answer).substring(ERROR.length()));
        }
        return answer;
    }

    static RuntimeException failure(String sentence) {
        return thrown(new Failure(sentence));
    }

    /** An error that is a sentence, and stays one: PySpark can't print one that has a place in the query, and no error class. */
    private static final class Failure extends AnalysisException {
        Failure(String sentence) {
            super(sentence, Option.empty(), Option.empty(), Option.empty(), Option.empty(),
                (scala.collection.immutable.Map) Map$.MODULE$.empty(), new org.apache.spark.QueryContext[0]);
        }

        public AnalysisException withPosition(Origin origin) {
            return this;
        }
    }

    /** Throws what Spark's interfaces do not declare, and its callers expect. */
    static RuntimeException thrown(Throwable error) {
        org.apache.spark.unsafe.Platform.throwException(error);
        return null;
    }
}

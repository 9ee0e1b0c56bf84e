package lakebed;

import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.classic.SparkSession;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractFunction2;
import scala.runtime.BoxedUnit;

/** What lakebed adds to a session: spark.sql.extensions=lakebed.Extensions. */
public final class Extensions extends AbstractFunction1 {
    public Object apply(Object given) {
        SparkSessionExtensions extensions = (SparkSessionExtensions) given;
        extensions.injectParser(new AbstractFunction2() {
            public Object apply(Object session, Object parser) {
                return Parser.beside((SparkSession) session, (ParserInterface) parser);
            }
        });
        extensions.injectResolutionRule(new AbstractFunction1() {
            public Object apply(Object session) {
                return new Rules.RowLevel();
            }
        });
        extensions.injectResolutionRule(new AbstractFunction1() {
            public Object apply(Object session) {
                return new Creations((SparkSession) session);
            }
        });
        extensions.injectTableFunction(Changes.function());
        extensions.injectHintResolutionRule(new AbstractFunction1() {
            public Object apply(Object session) {
                return new Changes((SparkSession) session);
            }
        });
        extensions.injectPostHocResolutionRule(new AbstractFunction1() {
            public Object apply(Object session) {
                return new Rules((SparkSession) session);
            }
        });
        extensions.injectPlannerStrategy(new AbstractFunction1() {
            public Object apply(Object session) {
                return new Streamed.Strategy();
            }
        });
        extensions.injectCheckRule(new AbstractFunction1() {
            public Object apply(Object session) {
                return new Refusals();
            }
        });
        return BoxedUnit.UNIT;
    }
}

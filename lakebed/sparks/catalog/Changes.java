package lakebed;

import java.util.ArrayList;
import java.util.List;

import org.apache.spark.sql.catalyst.FunctionIdentifier;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTableValuedFunction;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.ExpressionInfo;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.parser.ParseException;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.SparkSession;
import scala.Function1;
import scala.Product;
import scala.Tuple3;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;

/**
 * table_changes('lake.shop.orders', from[, to]) for our tables. Delta has a function of that name: so before names are resolved,
 * the call gets another name, NAME, if its table is in a catalog of ours.
 */
public final class Changes extends Rule {
    private static final String CALLED = "table_changes", NAME = "lakebed_changes";

    private final SparkSession session;

    Changes(SparkSession session) {
        this.session = session;
    }

    /** The function NAME, for Extensions. */
    static Tuple3 function() {
        Function1 builder = new AbstractFunction1() {
            public Object apply(Object given) {
                return plan(SparkSession.active(), CollectionConverters.asJava((Seq) given));
            }
        };
        return new Tuple3(new FunctionIdentifier(NAME), new ExpressionInfo(Changes.class.getName(), NAME), builder);
    }

    public TreeNode apply(TreeNode plan) {
        return ((LogicalPlan) plan).transformWithSubqueries(new AbstractPartialFunction() {
            public boolean isDefinedAt(Object node) {
                refuse(node);
                return node instanceof UnresolvedTableValuedFunction && isOurs((UnresolvedTableValuedFunction) node);
            }

            public Object applyOrElse(Object node, Function1 otherwise) {
                if (!isDefinedAt(node)) return otherwise.apply(node);
                UnresolvedTableValuedFunction call = (UnresolvedTableValuedFunction) node;
                ArrayList name = new ArrayList();
                name.add(NAME);
                return call.copy(Rules.seq(name), call.functionArgs(), call.isStreaming());
            }
        });
    }

    /** CHANGES FROM VERSION, which Spark has from 4.2 on. Its changes are inserts, and updates with what was before. */
    private void refuse(Object node) {
        if (!node.getClass().getSimpleName().equals("RelationChanges")) return;
        Object relation = ((Product) node).productElement(0);
        if (!(relation instanceof UnresolvedRelation)) return;
        Seq names = ((UnresolvedRelation) relation).multipartIdentifier();
        if (Catalog.inCatalog(session, CollectionConverters.asJava(names)) == null) return;
        throw Python.failure("CHANGES wants to know what a row was before a change, and a change of a table of lakebed's says"
            + " what it is from then on; write " + CALLED + "('" + names.mkString(".") + "', 10, 20) for versions 10 to 20");
    }

    private boolean isOurs(UnresolvedTableValuedFunction call) {
        if (call.name().size() != 1 || !((String) call.name().head()).equalsIgnoreCase(CALLED)) return false;
        Object first = call.functionArgs().isEmpty() ? null : call.functionArgs().head();
        return first instanceof Literal && inCatalog(session, ((Literal) first).value()) != null;
    }

    private static List inCatalog(SparkSession session, Object name) {
        try {
            Seq names = session.sessionState().sqlParser().parseMultipartIdentifier(String.valueOf(name));
            return Catalog.inCatalog(session, CollectionConverters.asJava(names));
        } catch (ParseException noName) {
            return null;
        }
    }

    private static LogicalPlan plan(SparkSession session, List given) {
        Object[] values = new Object[given.size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = ((Expression) given.get(i)).foldable() ? ((Expression) given.get(i)).eval(null) : null;
            if (i > 0 && !(values[i] instanceof Integer || values[i] instanceof Long)) values[i] = null;
            if (values[i] == null || values.length > 3) break;
        }
        List table = values.length < 2 || values.length > 3 || values[0] == null ? null : inCatalog(session, values[0]);
        if (table == null || values[1] == null || values[values.length - 1] == null) {
            throw Python.failure(CALLED + " takes the name of a table, and the first and perhaps the last version as numbers: "
                + CALLED + "('lake.shop.orders', 10, 20)");
        }
        String last = values.length == 2 ? null : values[2].toString();
        return ((Catalog) table.get(0)).changes(session, table.subList(1, table.size()), values[1].toString(), last);
    }
}

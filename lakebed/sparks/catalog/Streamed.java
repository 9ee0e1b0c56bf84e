package lakebed;

import java.util.ArrayList;

import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkStrategy;
import org.apache.spark.sql.execution.datasources.v2.V2CommandExec;
import org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2;
import org.apache.spark.sql.execution.streaming.sources.MicroBatchWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;
import scala.collection.immutable.IndexedSeq;
import scala.collection.immutable.Seq;

/**
 * A stream that is written to a table by its name: df.writeStream.toTable("lake.shop.orders").
 *
 * Spark would have tasks write the rows of a batch. Instead of that plan there is one that gives the rows to Python, as
 * foreachBatch does (lakebed/names/answers.py); so a batch is brought in one commit, and once.
 */
class Streamed implements WriteBuilder, SupportsTruncate, Write, StreamingWrite {
    private final NamedTable table;
    private boolean replaces; // each batch is all rows
    private Dataset rows; // of the batch that is written

    private Streamed(NamedTable table) {
        this.table = table;
    }

    /** With keys a row replaces the one before, so a stream may say what has changed. */
    private static final class ByKey extends Streamed implements SupportsStreamingUpdateAsAppend {
        ByKey(NamedTable table) {
            super(table);
        }
    }

    static WriteBuilder into(NamedTable table) {
        return table.keys().length > 0 ? new ByKey(table) : new Streamed(table);
    }

    public WriteBuilder truncate() {
        replaces = true;
        return this;
    }

    public Write build() {
        return this;
    }

    public StreamingWrite toStreaming() {
        return this;
    }

    public BatchWrite toBatch() {
        throw NamedTable.notByExtension();
    }

    public String description() {
        return table.name();
    }

    public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
        throw NamedTable.notByExtension();
    }

    public void commit(long batch, WriterCommitMessage[] messages) {
        String[] values = {table.handle(), String.valueOf(batch), String.valueOf(replaces)};
        Python.ask("batch", values, rows);
    }

    public void abort(long batch, WriterCommitMessage[] messages) {}

    /** Plans a batch. */
    static final class Strategy extends SparkStrategy {
        public Seq apply(LogicalPlan plan) {
            ArrayList plans = new ArrayList();
            Object write = plan instanceof WriteToDataSourceV2 ? ((WriteToDataSourceV2) plan).batchWrite() : null;
            Object to = write instanceof MicroBatchWrite ? ((MicroBatchWrite) write).writeSupport() : null;
            if (to instanceof Streamed) {
                LogicalPlan query = (LogicalPlan) ((WriteToDataSourceV2) plan).query();
                plans.add(new Exec((Streamed) to, (BatchWrite) write, (SparkPlan) planLater(query)));
            }
            return Rules.seq(plans);
        }
    }

    /** Gives a batch to Python. */
    static final class Exec extends V2CommandExec {
        private final Streamed to;
        private final BatchWrite write; // knows the number of the batch
        private final SparkPlan query;

        Exec(Streamed to, BatchWrite write, SparkPlan query) {
            this.to = to;
            this.write = write;
            this.query = query;
        }

        public Seq run() {
            to.rows = ((SparkSession) session()).internalCreateDataFrame(query.execute(), query.schema(), false);
            write.commit(new WriterCommitMessage[0]);
            return Rules.seq(new ArrayList());
        }

        public Seq output() {
            return Rules.seq(new ArrayList());
        }

        public Seq children() {
            ArrayList plans = new ArrayList();
            plans.add(query);
            return Rules.seq(plans);
        }

        public TreeNode withNewChildrenInternal(IndexedSeq children) {
            return new Exec(to, write, (SparkPlan) children.apply(0));
        }

        public String nodeName() {
            return "Lakebed STREAM " + to.description();
        }

        public int productArity() {
            return 0;
        }

        public Object productElement(int at) {
            throw new IndexOutOfBoundsException(String.valueOf(at));
        }

        public boolean canEqual(Object other) {
            return other instanceof Exec;
        }

        public int hashCode() {
            return System.identityHashCode(this);
        }

        public boolean equals(Object other) {
            return this == other;
        }
    }
}

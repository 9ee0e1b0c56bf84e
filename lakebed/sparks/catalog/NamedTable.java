package lakebed;

import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.catalog.SupportsMetadataColumns;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsRowLevelOperations;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TruncatableTable;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.connector.write.RowLevelOperationBuilder;
import org.apache.spark.sql.connector.write.RowLevelOperationInfo;
import org.apache.spark.sql.connector.write.SupportsDelta;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.LongType$;
import org.apache.spark.sql.types.StringType$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A table at one version, or one of its metadata tables, as Spark's analyzer sees it.
 *
 * Nothing is read or written through this class: Rules puts lakebed's own scan in its place, and Statement in that of a write.
 */
public final class NamedTable implements Table, SupportsRead, SupportsWrite, TruncatableTable {
    static final String PART = "_lakebed_part", ROW = "_lakebed_row"; // PartIndex.java
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Catalog catalog;
    private final String name;
    private final String handle; // which table and version, in Python's words
    private final StructType schema;
    private final String[] keys;
    private final String[] partitions;
    private final Map properties;
    private final boolean isMetadata;
    private final boolean combines;
    private final long rows;
    private final long bytes;

    /** From the answer of Python to "load". */
    NamedTable(Catalog catalog, String name, String answer) {
        this.catalog = catalog;
        this.name = name;
        try {
            JsonNode read = JSON.readTree(answer);
            this.handle = String.valueOf(read.get("handle"));
            this.schema = (StructType) DataType.fromJson(String.valueOf(read.get("schema")));
            this.keys = texts((JsonNode) read.get("keys"));
            this.partitions = texts((JsonNode) read.get("partitions"));
            this.isMetadata = ((JsonNode) read.get("is_metadata")).booleanValue();
            this.combines = ((JsonNode) read.get("combines")).booleanValue();
            this.rows = ((JsonNode) read.get("rows")).longValue();
            this.bytes = ((JsonNode) read.get("bytes")).longValue();
            this.properties = new HashMap();
            for (Iterator i = ((JsonNode) read.get("properties")).fields(); i.hasNext();) {
                Map.Entry entry = (Map.Entry) i.next();
                properties.put(entry.getKey(), ((JsonNode) entry.getValue()).textValue());
            }
        } catch (java.io.IOException error) {
            throw new IllegalStateException(answer, error);
        }
    }

    private static String[] texts(JsonNode list) {
        String[] out = new String[list.size()];
        for (int i = 0; i < out.length; i++) out[i] = ((JsonNode) list.get(i)).textValue();
        return out;
    }

    public String handle() {
        return handle;
    }

    public String[] keys() {
        return keys;
    }

    /** By what rows are known to Spark's rewrite of a statement: their keys, or the places that Python gives them. */
    public String[] rowId() {
        return keys.length == 0 ? new String[] {PART, ROW} : keys;
    }

    public boolean isMetadata() {
        return isMetadata;
    }

    /** Whether a row of it comes of several changes. */
    boolean combines() {
        return combines;
    }

    public String name() {
        return name;
    }

    /** For errors of Spark that end with what the table is: that it can't be written as a stream. */
    public String toString() {
        return isMetadata ? "it is a metadata table, which can't be changed" : name;
    }

    public StructType schema() {
        return schema;
    }

    public Transform[] partitioning() {
        Transform[] out = new Transform[partitions.length];
        for (int i = 0; i < out.length; i++) out[i] = Expressions.identity(partitions[i]);
        return out;
    }

    public Map properties() {
        return properties;
    }

    public Set capabilities() {
        Set out = new HashSet();
        out.add(TableCapability.BATCH_READ);
        if (!isMetadata) {
            out.add(TableCapability.BATCH_WRITE);
            out.add(TableCapability.TRUNCATE);
            out.add(TableCapability.OVERWRITE_BY_FILTER);
            out.add(TableCapability.OVERWRITE_DYNAMIC);
            out.add(TableCapability.STREAMING_WRITE);
        }
        return out;
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new Size(schema, rows, bytes);
    }

    /** Says how large the table is, to DESCRIBE. */
    public static final class Size implements ScanBuilder, Scan, SupportsReportStatistics, Statistics {
        private final StructType schema;
        private final long rows;
        private final long bytes;

        Size(StructType schema, long rows, long bytes) {
            this.schema = schema;
            this.rows = rows;
            this.bytes = bytes;
        }

        public Scan build() {
            return this;
        }

        public StructType readSchema() {
            return schema;
        }

        public Batch toBatch() {
            throw notByExtension();
        }

        public Statistics estimateStatistics() {
            return this;
        }

        public OptionalLong sizeInBytes() {
            return OptionalLong.of(bytes);
        }

        public OptionalLong numRows() {
            return rows < 0 ? OptionalLong.empty() : OptionalLong.of(rows);
        }
    }

    /** For a stream; Rules replaces all other writes. */
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        requireNewest();
        return Streamed.into(this);
    }

    static RuntimeException notByExtension() {
        return Python.failure("lakebed's names can't be used in this session: it lacks spark.sql.extensions=lakebed.Extensions");
    }

    /** Refuses to change it where its catalog has tables as of a point. */
    void requireNewest() {
        catalog.requireNewest(name);
    }

    public boolean truncateTable() {
        if (isMetadata) throw Python.failure(name + " is a metadata table: it can't be changed");
        requireNewest();
        Python.ask("truncate", new String[] {handle}, null);
        return true;
    }

    /**
     * The same table for Spark's own rewrite of UPDATE and MERGE. For a table that Spark may rewrite, it does so while names are
     * resolved, and a Statement needs what it was before.
     */
    public static final class Rewritable
            implements Table, SupportsRead, SupportsWrite, SupportsRowLevelOperations, SupportsMetadataColumns {
        final NamedTable table;

        Rewritable(NamedTable table) {
            this.table = table;
        }

        public String name() {
            return table.name();
        }

        public StructType schema() {
            return table.schema();
        }

        public Set capabilities() {
            return table.capabilities();
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            throw notByExtension();
        }

        public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
            throw notByExtension();
        }

        public MetadataColumn[] metadataColumns() {
            if (table.keys().length > 0) return new MetadataColumn[0];
            return new MetadataColumn[] {new Place(PART, StringType$.MODULE$), new Place(ROW, LongType$.MODULE$)};
        }

        public RowLevelOperationBuilder newRowLevelOperationBuilder(RowLevelOperationInfo info) {
            return new Operation(info.command(), table.rowId());
        }
    }

    /** What says where a row is. */
    private static final class Place implements MetadataColumn {
        private final String name;
        private final DataType type;

        Place(String name, DataType type) {
            this.name = name;
            this.type = type;
        }

        public String name() {
            return name;
        }

        public DataType dataType() {
            return type;
        }

        public boolean isNullable() {
            return false;
        }
    }

    /** Says by what rows are known. Spark makes its plan of a statement from that. */
    public static final class Operation implements RowLevelOperationBuilder, SupportsDelta {
        private final RowLevelOperation.Command command;
        private final String[] names;

        Operation(RowLevelOperation.Command command, String[] names) {
            this.command = command;
            this.names = names;
        }

        public RowLevelOperation build() {
            return this;
        }

        public RowLevelOperation.Command command() {
            return command;
        }

        public NamedReference[] rowId() {
            NamedReference[] out = new NamedReference[names.length];
            for (int i = 0; i < out.length; i++) out[i] = Expressions.column("`" + names[i].replace("`", "``") + "`");
            return out;
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            throw notByExtension();
        }

        public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo info) {
            throw notByExtension();
        }

        public boolean representUpdateAsDeleteAndInsert() {
            return false;
        }

        public NamedReference[] requiredMetadataAttributes() {
            return new NamedReference[0];
        }

        public String description() {
            return command.toString();
        }
    }
}

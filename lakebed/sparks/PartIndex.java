import java.math.BigDecimal;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.WritableComparator;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.BasePredicate;
import org.apache.spark.sql.catalyst.expressions.BinaryComparison;
import org.apache.spark.sql.catalyst.expressions.BindReferences$;
import org.apache.spark.sql.catalyst.expressions.BitwiseAnd;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.EqualNullSafe;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.GreaterThan;
import org.apache.spark.sql.catalyst.expressions.GreaterThanOrEqual;
import org.apache.spark.sql.catalyst.expressions.In;
import org.apache.spark.sql.catalyst.expressions.InSet;
import org.apache.spark.sql.catalyst.expressions.IsNotNull;
import org.apache.spark.sql.catalyst.expressions.IsNull;
import org.apache.spark.sql.catalyst.expressions.LessThan;
import org.apache.spark.sql.catalyst.expressions.LessThanOrEqual;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.expressions.Or;
import org.apache.spark.sql.catalyst.expressions.Predicate$;
import org.apache.spark.sql.catalyst.expressions.ShiftLeft;
import org.apache.spark.sql.catalyst.expressions.ShiftRight;
import org.apache.spark.sql.catalyst.expressions.StartsWith;
import org.apache.spark.sql.catalyst.expressions.Add;
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.expressions.package$;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.catalyst.util.QuotingUtils$;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.FileStatusWithMetadata;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation$;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat$;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType$;
import org.apache.spark.sql.types.ByteType$;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType$;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType$;
import org.apache.spark.sql.types.FloatType$;
import org.apache.spark.sql.types.IntegerType$;
import org.apache.spark.sql.types.LongType$;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.ShortType$;
import org.apache.spark.sql.types.StringType$;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType$;
import org.apache.spark.sql.types.TimestampType$;
import org.apache.spark.unsafe.types.UTF8String;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The parts of one version of a table, as a file index for which Spark plans its own Parquet scan.
 *
 * The driver compiles this class with Janino, the compiler that Spark itself uses for generated code; executors never
 * load it. It is written without lambdas and inferred generics, which Janino lacks.
 *
 * Every part is a partition of its own: besides the table's partition columns, its partition row holds the part's dead
 * rows (DEAD_COLUMN, null if none), in the layout of lakebed/view/spark_scan.py. The plan filters on them with Spark's
 * own expressions. A part is left out when its statistics show that no row can match; that is only an optimization.
 */
public final class PartIndex implements FileIndex {
    private static final ObjectMapper JSON =
        new ObjectMapper().enable(DeserializationFeature.USE_BIG_DECIMAL_FOR_FLOATS);
    private static final String DEAD_COLUMN = "_lakebed_dead";
    private static final String PART_COLUMN = "_lakebed_part"; // and the next: of a scan that says where each row is
    private static final String ROW_COLUMN = "_lakebed_row";
    private static final String VERIFIES = "parquet.page.verify-checksum.enabled";
    // Delta's writers cut timestamps in statistics to milliseconds, maxima too.
    private static final long MAX_SLACK_MICROS = 1000L;

    private final Path root;
    private final StructType schema;
    private final StructType partitionSchema;
    private final StoredNames stored; // null: all names are the users'
    private final String timeZone;
    private final LinkedHashMap parts; // id -> Part
    private final long bytes;
    private final boolean hasDead;
    private final Map reads; // path -> number of planned queries that read it; null: reads are not counted

    /** One file, immutable except for its statistics, which are parsed when a query first needs them. */
    public static final class Part {
        final PartitionDirectory directory;
        final long bytes;
        final boolean hasDead;
        final String statsText;
        private final StoredNames stored;
        private volatile JsonNode stats;

        Part(PartitionDirectory directory, long bytes, boolean hasDead, String statsText, StoredNames stored) {
            this.directory = directory;
            this.bytes = bytes;
            this.hasDead = hasDead;
            this.statsText = statsText;
            this.stored = stored;
        }

        /** By the users' names. */
        JsonNode stats() throws Exception {
            if (stats == null) {
                JsonNode read = JSON.readTree(statsText);
                stats = stored == null ? read : stored.inUsersNames(read);
            }
            return stats;
        }
    }

    private PartIndex(
            Path root, StructType schema, StructType partitionSchema, StoredNames stored, String timeZone,
            LinkedHashMap parts, Map reads) {
        this.root = root;
        this.schema = schema;
        this.partitionSchema = partitionSchema;
        this.stored = stored;
        this.timeZone = timeZone;
        this.parts = parts;
        this.reads = reads;
        long sum = 0;
        boolean dead = false;
        for (Iterator i = parts.values().iterator(); i.hasNext();) {
            Part part = (Part) i.next();
            sum += part.bytes;
            dead |= part.hasDead;
        }
        this.bytes = sum;
        this.hasDead = dead;
    }

    /**
     * An index without parts. `schemaJson` is the table's schema, `partitionColumns` are its partition columns.
     * `storedJson` is the same schema with the stored names, null if they are the same.
     */
    public static PartIndex empty(
            String root, String schemaJson, List partitionColumns, String timeZone, String storedJson) {
        StructType schema = (StructType) DataType.fromJson(schemaJson);
        StoredNames stored =
            storedJson == null ? null : new StoredNames(schema, (StructType) DataType.fromJson(storedJson));
        StructType partitionSchema = new StructType();
        for (int i = 0; i < partitionColumns.size(); i++) {
            partitionSchema = partitionSchema.add(schema.apply((String) partitionColumns.get(i)));
        }
        partitionSchema = partitionSchema.add(DEAD_COLUMN, BinaryType$.MODULE$, true);
        return new PartIndex(
            new Path(root), schema, partitionSchema, stored, timeZone, new LinkedHashMap(), null);
    }

    /**
     * The index after `change`, which is JSON:
     * {"remove": [id], "add": [[id, path, bytes, {column: text}, dead base64, stats]]}.
     */
    public PartIndex apply(byte[] change) throws Exception {
        JsonNode tree = JSON.readTree(change);
        LinkedHashMap next = new LinkedHashMap(parts);
        for (Iterator i = field(tree, "remove").iterator(); i.hasNext();) {
            next.remove(((JsonNode) i.next()).textValue());
        }
        for (Iterator i = field(tree, "add").iterator(); i.hasNext();) {
            JsonNode entry = (JsonNode) i.next();
            next.put(item(entry, 0).textValue(), part(entry));
        }
        return new PartIndex(root, schema, partitionSchema, stored, timeZone, next, reads);
    }

    /** The same parts; every query counts the parts that it will read in `reads`, a Map of Integer by path, or null. */
    public PartIndex counting(Map reads) {
        return new PartIndex(root, schema, partitionSchema, stored, timeZone, parts, reads);
    }

    private Part part(JsonNode entry) throws Exception {
        String name = item(entry, 1).textValue();
        boolean absolute = name.indexOf("://") > 0 || name.startsWith("file:/");
        Path path = absolute ? new Path(name) : new Path(root, new Path(null, null, name));
        long size = item(entry, 2).longValue();
        byte[] dead = item(entry, 4).isNull() ? null : item(entry, 4).binaryValue();
        int columns = partitionSchema.length() - 1;
        Object[] values = new Object[columns + 1];
        for (int i = 0; i < columns; i++) {
            StructField column = partitionSchema.fields()[i];
            JsonNode text = field(item(entry, 3), stored == null ? column.name() : stored.of(column.name()));
            if (!text.isTextual()) continue;
            values[i] = partitionValue(text.textValue(), column.dataType());
        }
        values[columns] = dead;
        FileStatus[] status = new FileStatus[] {new FileStatus(size, false, 0, 1L, 0L, path)};
        PartitionDirectory directory = PartitionDirectory.apply(new GenericInternalRow(values), status);
        String stats = item(entry, 5).isNull() ? null : item(entry, 5).textValue();
        return new Part(directory, size, dead != null, stats, stored);
    }

    private Object partitionValue(String text, DataType type) throws Exception {
        if (type.equals(BinaryType$.MODULE$)) return text.getBytes("UTF-8");
        if (text.isEmpty()) return null;
        Literal literal = Literal.create(UTF8String.fromString(text), StringType$.MODULE$);
        Object value = new Cast(literal, type, scala.Option.apply(timeZone)).eval(null);
        if (value == null) {
            throw new IllegalArgumentException("partition value '" + text + "' is no " + type.simpleString());
        }
        return value;
    }

    /** The same parts, whose partition rows have their paths too. */
    private PartIndex withPaths() {
        LinkedHashMap next = new LinkedHashMap();
        for (Iterator i = parts.entrySet().iterator(); i.hasNext();) {
            Map.Entry entry = (Map.Entry) i.next();
            Part part = (Part) entry.getValue();
            Object[] values = new Object[partitionSchema.length() + 1];
            System.arraycopy(((GenericInternalRow) part.directory.values()).values(), 0, values, 0, values.length - 1);
            values[values.length - 1] = UTF8String.fromString(pathOf((String) entry.getKey()));
            PartitionDirectory directory = new PartitionDirectory(new GenericInternalRow(values), part.directory.files());
            next.put(entry.getKey(), new Part(directory, part.bytes, part.hasDead, part.statsText, part.stored));
        }
        StructType more = partitionSchema.add(PART_COLUMN, StringType$.MODULE$, true);
        return new PartIndex(root, schema, more, stored, timeZone, next, reads);
    }

    /**
     * The plan of the live rows: a Parquet scan, a filter if there are dead rows, and the table's columns.
     * verifies: the reader compares the checksums of pages. places: and two columns more, the path of a row's part and the row's
     * number in it.
     */
    public Object dataset(org.apache.spark.sql.classic.SparkSession session, boolean verifies, boolean places) {
        String rowIndex = ParquetFileFormat$.MODULE$.ROW_INDEX_TEMPORARY_COLUMN_NAME();
        StructType fileSchema = new StructType();
        for (int i = 0; i < schema.length(); i++) {
            StructField field = schema.fields()[i];
            if (!partitionSchema.getFieldIndex(field.name()).isDefined()) fileSchema = fileSchema.add(field);
        }
        if (hasDead || places) fileSchema = fileSchema.add(rowIndex, LongType$.MODULE$, true);
        PartIndex index = places ? withPaths() : this;
        HadoopFsRelation relation = new HadoopFsRelation(
            index, index.partitionSchema, fileSchema, scala.Option.empty(), stored == null ? new ParquetFileFormat() : stored,
            readerOptions(verifies), session);
        LogicalPlan plan = LogicalRelation$.MODULE$.apply(relation, false);
        HashMap columns = new HashMap();
        for (Iterator i = CollectionConverters.asJava(plan.output()).iterator(); i.hasNext();) {
            Attribute column = (Attribute) i.next();
            columns.put(column.name(), column);
        }
        if (hasDead) {
            plan = new Filter(alive((Expression) columns.get(DEAD_COLUMN), (Expression) columns.get(rowIndex)), plan);
        }
        ArrayList output = new ArrayList();
        for (int i = 0; i < schema.length(); i++) output.add(columns.get(schema.fields()[i].name()));
        if (places) {
            output.add(columns.get(PART_COLUMN));
            output.add(new Alias(
                (Expression) columns.get(rowIndex), ROW_COLUMN, NamedExpression$.MODULE$.newExprId(), seq(new ArrayList()),
                scala.Option.empty(), seq(new ArrayList())));
        }
        return Dataset$.MODULE$.ofRows(session, new Project(seq(output), plan));
    }

    /** What would else be up to settings of the session: which days a file means, and whether a file that fails is left out. */
    private static scala.collection.immutable.Map readerOptions(boolean verifies) {
        HashMap options = new HashMap();
        options.put(VERIFIES, Boolean.toString(verifies));
        options.put("datetimeRebaseMode", "CORRECTED");
        options.put("int96RebaseMode", "CORRECTED");
        options.put("ignoreCorruptFiles", "false");
        options.put("ignoreMissingFiles", "false");
        return (scala.collection.immutable.Map) scala.collection.immutable.Map$.MODULE$.from(
            CollectionConverters.asScala((Map) options));
    }

    /**
     * dead IS NULL OR the bit of the row is not set. An int per block of 1,024 rows gives the byte at which the bits of
     * the block begin; they are big-endian, with the first row's bit highest. So shifting the row's word left by the
     * row's number moves the row's bit to the sign.
     */
    private static Expression alive(Expression dead, Expression row) {
        Expression block = new Cast(new ShiftRight(row, integer(10)), IntegerType$.MODULE$, scala.Option.empty());
        Expression rowInt = new Cast(row, IntegerType$.MODULE$, scala.Option.empty());
        Expression start = readInt(dead, new ShiftLeft(block, integer(2)));
        Expression offset = new BitwiseAnd(new ShiftRight(rowInt, integer(3)), integer(124));
        Expression word = readInt(dead, new Add(start, offset));
        Expression unset = new GreaterThanOrEqual(new ShiftLeft(word, rowInt), integer(0));
        return new Or(new IsNull(dead), unset);
    }

    private static Expression integer(int value) {
        return Literal.create(Integer.valueOf(value), IntegerType$.MODULE$);
    }

    private static Expression readInt(Expression bytes, Expression at) {
        ArrayList arguments = new ArrayList();
        arguments.add(bytes);
        arguments.add(at);
        return new StaticInvoke(
            WritableComparator.class, IntegerType$.MODULE$, "readInt", seq(arguments), seq(new ArrayList()),
            true, false, true, scala.Option.empty());
    }

    // Jackson's overrides return a narrower type, which Janino does not see; hence the casts.
    private static JsonNode field(JsonNode node, String name) {
        return (JsonNode) node.path(name);
    }

    private static JsonNode item(JsonNode node, int at) {
        return (JsonNode) node.path(at);
    }

    private static scala.collection.immutable.Seq seq(List list) {
        return CollectionConverters.asScala(list).toSeq();
    }

    // Names ------------------------------------------------------------------------------------------------------------

    /**
     * Spark's Parquet format for files that have other names than the users', at any depth.
     *
     * Only what reads a file sees the stored names: a part's schema, the columns that are read of it and the conditions
     * that are pushed down into it. The rows that come back have no names, so nothing is computed for a row.
     * Executors get the reader, which is Spark's own, and never this class.
     */
    public static final class StoredNames extends ParquetFileFormat {
        private final StructType users;
        private final StructType stored;
        private final HashMap columns; // a user's column -> a stored one; of nested fields too, as dotted paths

        StoredNames(StructType users, StructType stored) {
            this.users = users;
            this.stored = stored;
            this.columns = new HashMap();
            addPaths("", "", users, stored);
        }

        private void addPaths(String path, String storedPath, StructType fields, StructType storedFields) {
            for (int i = 0; i < fields.length(); i++) {
                StructField field = fields.fields()[i];
                StructField storedField = storedFields.fields()[i];
                String name = path + QuotingUtils$.MODULE$.quoteIfNeeded(field.name());
                String storedName = storedPath + QuotingUtils$.MODULE$.quoteIfNeeded(storedField.name());
                columns.put(name, storedName);
                if (field.dataType() instanceof StructType) {
                    addPaths(name + ".", storedName + ".", (StructType) field.dataType(),
                        (StructType) storedField.dataType());
                }
            }
        }

        /** The stored name of a user's column. */
        String of(String name) {
            return stored.fields()[users.fieldIndex(name)].name();
        }

        /** Statistics by the users' names; bounds of what lies within columns are not used. */
        JsonNode inUsersNames(JsonNode stats) {
            ObjectNode out = JSON.createObjectNode();
            out.set("numRecords", field(stats, "numRecords"));
            String[] kinds = new String[] {"minValues", "maxValues", "nullCount"};
            for (int kind = 0; kind < kinds.length; kind++) {
                ObjectNode named = JSON.createObjectNode();
                for (int i = 0; i < users.length(); i++) {
                    JsonNode value = field(field(stats, kinds[kind]), stored.fields()[i].name());
                    if (!value.isMissingNode()) named.set(users.fields()[i].name(), value);
                }
                out.set(kinds[kind], named);
            }
            return out;
        }

        public scala.Function1 buildReaderWithPartitionValues(
                org.apache.spark.sql.SparkSession session, StructType dataSchema, StructType partitionSchema,
                StructType requiredSchema, scala.collection.immutable.Seq filters,
                scala.collection.immutable.Map options, Configuration configuration) {
            ArrayList renamed = new ArrayList();
            for (Iterator i = CollectionConverters.asJava(filters).iterator(); i.hasNext();) {
                Object filter = renamed((org.apache.spark.sql.sources.Filter) i.next());
                if (filter != null) renamed.add(filter);
            }
            return new ParquetFileFormat().buildReaderWithPartitionValues(
                session, renamed(dataSchema, users, stored), partitionSchema, renamed(requiredSchema, users, stored),
                seq(renamed), options, configuration);
        }

        /** Some of the users' fields by their stored names; a field that is not among the users' stays. */
        private static StructType renamed(StructType some, StructType users, StructType stored) {
            StructType out = new StructType();
            for (int i = 0; i < some.length(); i++) {
                StructField field = some.fields()[i];
                scala.Option at = users.getFieldIndex(field.name());
                if (!at.isDefined()) {
                    out = out.add(field);
                    continue;
                }
                StructField of = users.fields()[((Integer) at.get()).intValue()];
                StructField as = stored.fields()[((Integer) at.get()).intValue()];
                DataType type = renamed(field.dataType(), of.dataType(), as.dataType());
                out = out.add(new StructField(as.name(), type, field.nullable(), field.metadata()));
            }
            return out;
        }

        private static DataType renamed(DataType some, DataType users, DataType stored) {
            if (some instanceof StructType) {
                return renamed((StructType) some, (StructType) users, (StructType) stored);
            }
            if (some instanceof ArrayType) {
                DataType element = renamed(
                    ((ArrayType) some).elementType(), ((ArrayType) users).elementType(),
                    ((ArrayType) stored).elementType());
                return new ArrayType(element, ((ArrayType) some).containsNull());
            }
            if (some instanceof MapType) {
                MapType map = (MapType) some;
                MapType of = (MapType) users;
                MapType as = (MapType) stored;
                return new MapType(
                    renamed(map.keyType(), of.keyType(), as.keyType()),
                    renamed(map.valueType(), of.valueType(), as.valueType()), map.valueContainsNull());
            }
            return some;
        }

        /** The condition on stored columns; null, which reads more, for one that is not understood. */
        private Object renamed(org.apache.spark.sql.sources.Filter filter) {
            scala.Product parts = (scala.Product) filter;
            Object[] arguments = new Object[parts.productArity()];
            for (int i = 0; i < arguments.length; i++) {
                Object argument = parts.productElement(i);
                if (argument instanceof org.apache.spark.sql.sources.Filter) {
                    argument = renamed((org.apache.spark.sql.sources.Filter) argument);
                    if (argument == null) return null;
                } else if (i == 0 && argument instanceof String) {
                    argument = columns.get(argument);
                    if (argument == null) return null;
                }
                arguments[i] = argument;
            }
            try {
                return arguments.length == 0 ? filter : filter.getClass().getConstructors()[0].newInstance(arguments);
            } catch (Exception unknown) {
                return null;
            }
        }
    }

    // The methods of a file index, which Spark calls ------------------------------------------------------------------

    public scala.collection.immutable.Seq rootPaths() {
        ArrayList paths = new ArrayList();
        paths.add(root);
        return seq(paths);
    }

    public scala.collection.immutable.Seq listFiles(
            scala.collection.immutable.Seq partitionFilters, scala.collection.immutable.Seq dataFilters) {
        ArrayList predicates = new ArrayList();
        for (Iterator i = CollectionConverters.asJava(partitionFilters).iterator(); i.hasNext();) {
            predicates.add(partitionPredicate((Expression) i.next()));
        }
        List filters = CollectionConverters.asJava(dataFilters);
        ArrayList found = new ArrayList();
        for (Iterator i = parts.entrySet().iterator(); i.hasNext();) {
            Map.Entry entry = (Map.Entry) i.next();
            Part part = (Part) entry.getValue();
            if (!inPartition(part, predicates) || !mayMatch(part, filters)) continue;
            found.add(part.directory);
            if (reads != null) countRead((String) entry.getKey());
        }
        return seq(found);
    }

    /** The counts in `reads` since the last call, as JSON: {path: count}. */
    public static String take(Map reads) throws Exception {
        synchronized (reads) {
            String counts = JSON.writeValueAsString(reads);
            reads.clear();
            return counts;
        }
    }

    /** An id is the path; if the part has dead rows, a zero character and an identity of these follow. */
    private static String pathOf(String id) {
        int end = id.indexOf(0);
        return end < 0 ? id : id.substring(0, end);
    }

    private void countRead(String id) {
        String path = pathOf(id);
        synchronized (reads) {
            Integer before = (Integer) reads.get(path);
            reads.put(path, Integer.valueOf(before == null ? 1 : before.intValue() + 1));
        }
    }

    public String[] inputFiles() {
        String[] names = new String[parts.size()];
        int at = 0;
        for (Iterator i = parts.values().iterator(); i.hasNext();) {
            FileStatusWithMetadata file = (FileStatusWithMetadata) ((Part) i.next()).directory.files().apply(0);
            names[at++] = file.getPath().toUri().toString();
        }
        return names;
    }

    public void refresh() {
        // A version never changes.
    }

    public long sizeInBytes() {
        return bytes;
    }

    public StructType partitionSchema() {
        return partitionSchema;
    }

    public String toString() {
        return "lakebed[" + parts.size() + " parts of " + root + "]";
    }

    // Which parts may hold a row that matches -------------------------------------------------------------------------

    /** Spark does not evaluate partition filters again after the scan, so this must be exact. */
    private BasePredicate partitionPredicate(Expression filter) {
        List defaults = CollectionConverters.asJava(DataTypeUtils.toAttributes(partitionSchema));
        ArrayList columns = new ArrayList(defaults);
        for (Iterator i = CollectionConverters.asJava(filter.references().toSeq()).iterator(); i.hasNext();) {
            Attribute used = (Attribute) i.next();
            for (int at = 0; at < columns.size(); at++) {
                if (((Attribute) defaults.get(at)).name().equalsIgnoreCase(used.name())) columns.set(at, used);
            }
        }
        return Predicate$.MODULE$.createInterpreted(
            BindReferences$.MODULE$.bindReference(filter, package$.MODULE$.AttributeSeq(seq(columns)), false));
    }

    private static boolean inPartition(Part part, List predicates) {
        for (int i = 0; i < predicates.size(); i++) {
            if (!((BasePredicate) predicates.get(i)).eval(part.directory.values())) return false;
        }
        return true;
    }

    private static boolean mayMatch(Part part, List filters) {
        if (part.statsText == null || filters.isEmpty()) return true;
        try {
            JsonNode stats = part.stats();
            for (int i = 0; i < filters.size(); i++) {
                if (!mayMatch(stats, (Expression) filters.get(i))) return false;
            }
        } catch (Exception unreadable) {
            return true; // statistics that can't be read prove nothing
        }
        return true;
    }

    private static boolean mayMatch(JsonNode stats, Expression filter) {
        if (filter instanceof And) {
            return mayMatch(stats, ((And) filter).left()) && mayMatch(stats, ((And) filter).right());
        }
        if (filter instanceof Or) {
            return mayMatch(stats, ((Or) filter).left()) || mayMatch(stats, ((Or) filter).right());
        }
        if (filter instanceof IsNull) return mayBeNull(stats, ((IsNull) filter).child());
        if (filter instanceof IsNotNull) return mayBeSet(stats, ((IsNotNull) filter).child());
        if (filter instanceof In) return mayBeIn(stats, (In) filter);
        if (filter instanceof InSet) return mayBeIn(stats, (InSet) filter);
        if (filter instanceof StartsWith) return mayStartWith(stats, (StartsWith) filter);
        if (filter instanceof BinaryComparison) return mayCompare(stats, (BinaryComparison) filter);
        return true;
    }

    private static boolean mayBeNull(JsonNode stats, Expression column) {
        if (!(column instanceof AttributeReference)) return true;
        JsonNode nulls = field(field(stats, "nullCount"), ((AttributeReference) column).name());
        return !nulls.isIntegralNumber() || nulls.longValue() > 0;
    }

    private static boolean mayBeSet(JsonNode stats, Expression column) {
        if (!(column instanceof AttributeReference)) return true;
        JsonNode nulls = field(field(stats, "nullCount"), ((AttributeReference) column).name());
        JsonNode rows = field(stats, "numRecords");
        return !nulls.isIntegralNumber() || !rows.isIntegralNumber() || nulls.longValue() < rows.longValue();
    }

    private static boolean mayBeIn(JsonNode stats, In filter) {
        for (Iterator i = CollectionConverters.asJava(filter.list()).iterator(); i.hasNext();) {
            Expression item = (Expression) i.next();
            if (!(item instanceof Literal) || !item.dataType().equals(filter.value().dataType())) return true;
            if (mayEqual(stats, filter.value(), ((Literal) item).value())) return true;
        }
        return false;
    }

    /** The set may be long, so the bounds are parsed once. */
    private static boolean mayBeIn(JsonNode stats, InSet filter) {
        if (!(filter.child() instanceof AttributeReference)) return true;
        AttributeReference column = (AttributeReference) filter.child();
        Object low = limit(bound(stats, "minValues", column), column.dataType(), 0);
        Object high = limit(bound(stats, "maxValues", column), column.dataType(), MAX_SLACK_MICROS);
        for (Iterator i = CollectionConverters.asJava(filter.hset()).iterator(); i.hasNext();) {
            Object value = i.next();
            if (value == null) continue;
            Integer below = compare(low, value, column.dataType());
            if (below != null && below.intValue() > 0) continue;
            Integer above = compare(high, value, column.dataType());
            if (above == null || above.intValue() >= 0) return true;
        }
        return false;
    }

    private static boolean mayStartWith(JsonNode stats, StartsWith filter) {
        if (!(filter.left() instanceof AttributeReference) || !(filter.right() instanceof Literal)) return true;
        AttributeReference column = (AttributeReference) filter.left();
        Object prefix = ((Literal) filter.right()).value();
        if (prefix == null || !column.dataType().equals(StringType$.MODULE$)) return prefix != null;
        Integer low = compare(bound(stats, "minValues", column), prefix, column.dataType(), 0);
        if (low != null && low.intValue() > 0) {
            return UTF8String.fromString(bound(stats, "minValues", column).textValue()).startsWith((UTF8String) prefix);
        }
        Integer high = compare(bound(stats, "maxValues", column), prefix, column.dataType(), 0);
        return high == null || high.intValue() >= 0;
    }

    private static boolean mayCompare(JsonNode stats, BinaryComparison filter) {
        Expression left = (Expression) filter.left();
        Expression right = (Expression) filter.right();
        boolean flipped = left instanceof Literal;
        Expression side = flipped ? right : left;
        Expression other = flipped ? left : right;
        if (!(side instanceof AttributeReference) || !(other instanceof Literal)) return true;
        if (!side.dataType().equals(other.dataType())) return true;
        Object value = ((Literal) other).value();
        if (filter instanceof EqualNullSafe && value == null) return mayBeNull(stats, side);
        if (value == null) return false;
        if (filter instanceof EqualTo || filter instanceof EqualNullSafe) return mayEqual(stats, side, value);
        boolean orEqual = filter instanceof LessThanOrEqual || filter instanceof GreaterThanOrEqual;
        boolean less = filter instanceof LessThan || filter instanceof LessThanOrEqual;
        if (!less && !(filter instanceof GreaterThan) && !(filter instanceof GreaterThanOrEqual)) return true;
        AttributeReference column = (AttributeReference) side;
        if (less != flipped) { // column < value: the smallest value of the column decides
            Integer low = compare(bound(stats, "minValues", column), value, column.dataType(), 0);
            return low == null || low.intValue() < 0 || (orEqual && low.intValue() == 0);
        }
        Integer high = compare(bound(stats, "maxValues", column), value, column.dataType(), MAX_SLACK_MICROS);
        return high == null || high.intValue() > 0 || (orEqual && high.intValue() == 0);
    }

    private static boolean mayEqual(JsonNode stats, Expression expression, Object value) {
        if (value == null) return false;
        if (!(expression instanceof AttributeReference)) return true;
        AttributeReference column = (AttributeReference) expression;
        Integer low = compare(bound(stats, "minValues", column), value, column.dataType(), 0);
        if (low != null && low.intValue() > 0) return false;
        Integer high = compare(bound(stats, "maxValues", column), value, column.dataType(), MAX_SLACK_MICROS);
        return high == null || high.intValue() >= 0;
    }

    private static JsonNode bound(JsonNode stats, String which, AttributeReference column) {
        return field(field(stats, which), column.name());
    }

    /** The sign of bound - value, or null if it is unknown. `slack` is added to a bound that is a timestamp. */
    private static Integer compare(JsonNode bound, Object value, DataType type, long slack) {
        return compare(limit(bound, type, slack), value, type);
    }

    /** A bound in the form in which values of its type are compared, or null. */
    private static Object limit(JsonNode bound, DataType type, long slack) {
        if (type.equals(StringType$.MODULE$)) {
            return bound.isTextual() ? UTF8String.fromString(bound.textValue()) : null;
        }
        if (isWhole(type)) return bound.isIntegralNumber() ? Long.valueOf(bound.longValue()) : null;
        if (type.equals(DoubleType$.MODULE$)) return bound.isNumber() ? Double.valueOf(bound.doubleValue()) : null;
        if (type.equals(FloatType$.MODULE$)) {
            return bound.isNumber() ? Double.valueOf((double) bound.floatValue()) : null;
        }
        if (type instanceof DecimalType) return bound.isNumber() ? bound.decimalValue() : null;
        if (!bound.isTextual()) return null;
        String text = bound.textValue();
        if (type.equals(DateType$.MODULE$)) return Long.valueOf(LocalDate.parse(text).toEpochDay());
        if (text.length() == 10) text += "T00:00:00Z"; // of a column that was a date when the part was written
        if (type.equals(TimestampType$.MODULE$)) {
            return Long.valueOf(micros(OffsetDateTime.parse(text).toInstant()) + slack);
        }
        if (type.equals(TimestampNTZType$.MODULE$)) {
            String local = text.endsWith("Z") ? text.substring(0, text.length() - 1) : text;
            return Long.valueOf(micros(LocalDateTime.parse(local).toInstant(ZoneOffset.UTC)) + slack);
        }
        return null;
    }

    private static Integer compare(Object limit, Object value, DataType type) {
        if (limit == null) return null;
        if (limit instanceof UTF8String) return Integer.valueOf(((UTF8String) limit).binaryCompare((UTF8String) value));
        if (limit instanceof Long) {
            return Integer.valueOf(Long.compare(((Long) limit).longValue(), ((Number) value).longValue()));
        }
        if (type instanceof DecimalType) {
            return Integer.valueOf(((BigDecimal) limit).compareTo(((Decimal) value).toJavaBigDecimal()));
        }
        double number = ((Number) value).doubleValue();
        if (Double.isNaN(number)) return null;
        double bound = ((Double) limit).doubleValue();
        return Integer.valueOf(bound < number ? -1 : bound > number ? 1 : 0); // -0.0 equals 0.0
    }

    private static boolean isWhole(DataType type) {
        return type.equals(LongType$.MODULE$) || type.equals(IntegerType$.MODULE$)
            || type.equals(ShortType$.MODULE$) || type.equals(ByteType$.MODULE$);
    }

    private static long micros(Instant instant) {
        return Math.addExact(Math.multiplyExact(instant.getEpochSecond(), 1000000L), (long) (instant.getNano() / 1000));
    }
}

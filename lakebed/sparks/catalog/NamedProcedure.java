package lakebed;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.MapData;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.procedures.BoundProcedure;
import org.apache.spark.sql.connector.catalog.procedures.ProcedureParameter;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.read.LocalScan;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DayTimeIntervalType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampType;

/** A procedure as Python describes it (lakebed/names/procedures.py), which also runs it. */
public final class NamedProcedure implements UnboundProcedure {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final Catalog catalog;
    private final JsonNode said; // by Python

    NamedProcedure(Catalog catalog, JsonNode said) {
        this.catalog = catalog;
        this.said = said;
    }

    public String name() {
        return ((JsonNode) said.get("name")).textValue();
    }

    public String description() {
        return ((JsonNode) said.get("summary")).textValue();
    }

    /** With the types that are given, where a parameter takes several. */
    public BoundProcedure bind(StructType given) {
        DataType[] chosen = new DataType[parametersSaid().size()];
        for (int i = 0; i < chosen.length; i++) {
            JsonNode may = (JsonNode) ((JsonNode) parametersSaid().get(i)).get("types");
            DataType wanted = typeGiven(given, i);
            chosen[i] = DataType.fromDDL(((JsonNode) may.get(0)).textValue());
            for (int j = 1; j < may.size(); j++) {
                DataType one = DataType.fromDDL(((JsonNode) may.get(j)).textValue());
                boolean isIt = wanted != null && wanted.getClass() == one.getClass();
                if (isIt) chosen[i] = wanted instanceof DayTimeIntervalType ? wanted : one; // these come as they are
            }
        }
        return new Bound(chosen);
    }

    private JsonNode parametersSaid() {
        return (JsonNode) said.get("parameters");
    }

    private DataType typeGiven(StructType given, int at) {
        String name = ((JsonNode) ((JsonNode) parametersSaid().get(at)).get("name")).textValue();
        StructField[] fields = given.fields();
        for (int i = 0; i < fields.length; i++) {
            boolean isNamed = fields[i].metadata().contains(ProcedureParameter.BY_NAME_METADATA_KEY);
            if (isNamed ? fields[i].name().equalsIgnoreCase(name) : i == at) return fields[i].dataType();
        }
        return null;
    }

    /** For one CALL, by the types of its parameters. */
    public final class Bound implements BoundProcedure {
        private final DataType[] types;

        Bound(DataType[] types) {
            this.types = types;
        }

        public String name() {
            return NamedProcedure.this.name();
        }

        public boolean isDeterministic() {
            return false;
        }

        public ProcedureParameter[] parameters() {
            ProcedureParameter[] out = new ProcedureParameter[types.length];
            for (int i = 0; i < out.length; i++) {
                JsonNode one = (JsonNode) parametersSaid().get(i);
                ProcedureParameter.Builder made = ProcedureParameter.in(((JsonNode) one.get("name")).textValue(), types[i]);
                if (!((JsonNode) one.get("default")).isNull()) made.defaultValue(((JsonNode) one.get("default")).textValue());
                out[i] = made.build();
            }
            return out;
        }

        public Iterator call(InternalRow values) {
            ObjectNode given = JSON.createObjectNode();
            for (int i = 0; i < types.length; i++) {
                Object value = values.isNullAt(i) ? null : values.get(i, types[i]);
                given.set(parameters()[i].name(), json(value, types[i]));
            }
            SparkSession session = SparkSession.active();
            Dataset rows = Dataset$.MODULE$.ofRows(session, catalog.call(session, name(), given.toString()));
            List out = new ArrayList();
            out.add(new Result(rows.schema(), rows.queryExecution().executedPlan().executeCollect()));
            return out.iterator();
        }
    }

    private static JsonNode json(Object value, DataType type) {
        if (value instanceof ArrayData) {
            ArrayNode out = JSON.createArrayNode();
            Object[] items = ((ArrayData) value).toObjectArray(((ArrayType) type).elementType());
            for (int i = 0; i < items.length; i++) out.add(String.valueOf(items[i]));
            return out;
        }
        if (value instanceof MapData) {
            ObjectNode out = JSON.createObjectNode();
            MapType of = (MapType) type;
            Object[] keys = ((MapData) value).keyArray().toObjectArray(of.keyType());
            Object[] items = ((MapData) value).valueArray().toObjectArray(of.valueType());
            for (int i = 0; i < keys.length; i++) out.set(String.valueOf(keys[i]), json(items[i], of.valueType()));
            return out;
        }
        if (value != null && type instanceof TimestampType) return JSON.valueToTree(((Long) value).longValue() / 1e6);
        if (value != null && type instanceof DayTimeIntervalType) {
            return JSON.valueToTree(((Long) value).longValue() / 1000000 + " seconds");
        }
        boolean isPlain = value == null || value instanceof Boolean || value instanceof Long;
        return JSON.valueToTree(isPlain ? value : value.toString());
    }

    /** The rows of a result. */
    public static final class Result implements LocalScan {
        private final StructType schema;
        private final InternalRow[] rows;

        Result(StructType schema, InternalRow[] rows) {
            this.schema = schema;
            this.rows = rows;
        }

        public StructType readSchema() {
            return schema;
        }

        public InternalRow[] rows() {
            return rows;
        }
    }
}

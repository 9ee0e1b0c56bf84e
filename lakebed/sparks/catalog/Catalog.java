package lakebed;

import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.catalyst.analysis.TableAlreadyExistsException;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.CatalogV2Util;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.ProcedureCatalog;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.catalog.procedures.UnboundProcedure;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A folder of tables as a catalog: spark.sql.catalog.NAME=lakebed.Catalog, spark.sql.catalog.NAME.warehouse=FOLDER. */
public class Catalog implements TableCatalog, SupportsNamespaces, ProcedureCatalog {
    private static final ObjectMapper JSON = new ObjectMapper();

    private String name;
    private String warehouse;
    private Settled settled; // answers where the driver runs no lakebed
    private String at; // the point of the database that tables are read at; null: their newest versions

    public void initialize(String name, CaseInsensitiveStringMap options) {
        this.name = name;
        this.warehouse = options.get("warehouse");
        this.at = options.get("at");
        if (warehouse == null) {
            String setting = "spark.sql.catalog." + name + ".warehouse";
            throw Python.failure("say where the tables of the catalog " + name + " are, in " + setting);
        }
        this.settled = new Settled(name, warehouse, at);
    }

    public String name() {
        return name;
    }

    public String warehouse() {
        return warehouse;
    }

    Settled settled() {
        return settled;
    }

    /** Of a name in a query: our catalog, then the names in it; null if it is in another one. */
    static List inCatalog(SparkSession session, List names) {
        ArrayList rest = new ArrayList(names);
        CatalogPlugin catalog = null;
        try {
            if (names.size() > 1) catalog = session.sessionState().catalogManager().catalog((String) names.get(0));
        } catch (Exception noCatalog) {
            catalog = null;
        }
        if (catalog != null) {
            rest.remove(0);
        } else {
            catalog = session.sessionState().catalogManager().currentCatalog();
            if (names.size() == 1) {
                String[] namespace = session.sessionState().catalogManager().currentNamespace();
                for (int i = namespace.length - 1; i >= 0; i--) rest.add(0, namespace[i]);
            }
        }
        if (!(catalog instanceof Catalog)) return null;
        rest.add(0, catalog);
        return rest;
    }

    /** The changes of some versions of a table, as a plan. */
    LogicalPlan changes(SparkSession session, List table, String from, String to) {
        String names = json((String[]) table.toArray(new String[0]));
        return (LogicalPlan) Python.ask("changes", new String[] {name, warehouse, at, names, from, to}, session);
    }

    /** The rows of the result of a procedure, as a plan. */
    LogicalPlan call(SparkSession session, String procedure, String arguments) {
        requireNewest("CALL " + procedure);
        return (LogicalPlan) Python.ask("call", new String[] {name, warehouse, at, procedure, arguments}, session);
    }

    // Tables ----------------------------------------------------------------------------------------------------------

    public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
        JsonNode found = Python.isThere() ? asked("tables", new String[] {json(namespace)})
            : (JsonNode) JSON.valueToTree(settled.tables(namespace));
        if (found.isNull()) throw new NoSuchNamespaceException(withCatalog(namespace));
        Identifier[] out = new Identifier[found.size()];
        for (int i = 0; i < out.length; i++) out[i] = Identifier.of(namespace, ((JsonNode) found.get(i)).textValue());
        return out;
    }

    public Table loadTable(Identifier table) throws NoSuchTableException {
        return Python.isThere() ? load(table, "null") : settled.load(nameOf(table), table);
    }

    /** Refuses what is not about tables as of a point, where the catalog has those. */
    void requireNewest(String what) {
        if (at != null) throw Python.failure(what + ": the catalog " + name + " has tables as of " + at
            + " (spark.sql.catalog." + name + ".at), and only reads them: use a catalog without it");
    }

    /** To write it. */
    public Table loadTable(Identifier table, Set privileges) throws NoSuchTableException {
        if (!Python.isThere()) throw Python.failure(nameOf(table) + ": " + Python.NO_LAKEBED);
        return loadTable(table);
    }

    public Table loadTable(Identifier table, String version) throws NoSuchTableException {
        if (!Python.isThere()) return settled.load(nameOf(table), table, version);
        return load(table, JSON.createObjectNode().put("version", version).toString());
    }

    public Table loadTable(Identifier table, long micros) throws NoSuchTableException {
        if (!Python.isThere()) return settled.load(nameOf(table), table, micros);
        return load(table, JSON.createObjectNode().put("micros", micros).toString());
    }

    private Table load(Identifier table, String when) throws NoSuchTableException {
        String answer = (String) Python.ask("load", new String[] {name, warehouse, at, json(table), when}, null);
        if (answer.equals("null")) throw new NoSuchTableException(table);
        return new NamedTable(this, nameOf(table), answer);
    }

    public boolean tableExists(Identifier table) {
        if (!Python.isThere()) return settled.folderOf(Settled.partsOf(table)) != null;
        return asked("exists", new String[] {json(table)}).booleanValue();
    }

    public Table createTable(Identifier table, StructType schema, Transform[] partitions, Map properties)
            throws TableAlreadyExistsException, NoSuchNamespaceException {
        String[] by = new String[partitions.length];
        for (int i = 0; i < by.length; i++) {
            if (!partitions[i].name().equals("identity")) {
                boolean isClustering = partitions[i].name().endsWith("cluster_by");
                throw Python.failure(nameOf(table) + (isClustering
                    ? ": a table is clustered by its sort key: set the property lakebed.sort_key in place of CLUSTER BY"
                    : ": tables are partitioned by columns, not by " + partitions[i].describe()
                        + "; add a column with that value"));
            }
            by[i] = String.join(".", ((NamedReference) partitions[i].references()[0]).fieldNames());
        }
        requireNewest(nameOf(table));
        JsonNode made = asked("create", new String[] {json(table), schema.json(), json(by), json(properties)});
        if (made.isNull()) throw new TableAlreadyExistsException(table);
        try {
            return loadTable(table);
        } catch (NoSuchTableException gone) {
            throw Python.thrown(gone);
        }
    }

    public Table createTable(Identifier table, Column[] columns, Transform[] partitions, Map properties)
            throws TableAlreadyExistsException, NoSuchNamespaceException {
        return createTable(table, CatalogV2Util.v2ColumnsToStructType(columns), partitions, properties);
    }

    /** Whether a table has these properties already. */
    boolean has(Identifier table, Map properties) {
        return asked("has", new String[] {json(table), json(properties)}).booleanValue();
    }

    public Table alterTable(Identifier table, TableChange[] changes) throws NoSuchTableException {
        requireNewest(nameOf(table));
        ArrayNode list = JSON.createArrayNode();
        for (int i = 0; i < changes.length; i++) list.add(described(changes[i]));
        asked("alter", new String[] {json(table), list.toString()});
        return loadTable(table);
    }

    private static ObjectNode described(TableChange change) {
        ObjectNode out = JSON.createObjectNode();
        out.put("kind", change.getClass().getSimpleName());
        if (change instanceof TableChange.ColumnChange) {
            out.put("column", path(((TableChange.ColumnChange) change).fieldNames()));
        }
        if (change instanceof TableChange.SetProperty) {
            out.put("property", ((TableChange.SetProperty) change).property());
            out.put("value", ((TableChange.SetProperty) change).value());
        } else if (change instanceof TableChange.RemoveProperty) {
            out.put("property", ((TableChange.RemoveProperty) change).property());
        } else if (change instanceof TableChange.AddColumn) {
            TableChange.AddColumn added = (TableChange.AddColumn) change;
            out.put("type", added.dataType().json());
            out.put("nullable", added.isNullable());
            out.put("comment", added.comment());
            out.put("has_default", added.defaultValue() != null);
            out.put("position", added.position() == null ? null : added.position().toString());
        } else if (change instanceof TableChange.RenameColumn) {
            out.put("name", ((TableChange.RenameColumn) change).newName());
        } else if (change instanceof TableChange.UpdateColumnType) {
            out.put("type", ((TableChange.UpdateColumnType) change).newDataType().json());
        } else if (change instanceof TableChange.UpdateColumnNullability) {
            out.put("nullable", ((TableChange.UpdateColumnNullability) change).nullable());
        } else if (change instanceof TableChange.UpdateColumnComment) {
            out.put("comment", ((TableChange.UpdateColumnComment) change).newComment());
        } else if (change instanceof TableChange.DeleteColumn) {
            out.put("if_exists", ((TableChange.DeleteColumn) change).ifExists().booleanValue());
        }
        return out;
    }

    public boolean dropTable(Identifier table) {
        requireNewest(nameOf(table));
        return asked("drop", new String[] {json(table), "false"}).booleanValue();
    }

    public boolean purgeTable(Identifier table) {
        requireNewest(nameOf(table));
        return asked("drop", new String[] {json(table), "true"}).booleanValue();
    }

    public void renameTable(Identifier table, Identifier name) {
        throw Python.failure("a table is called what its folder is called, and lakebed moves no folder: " + nameOf(table)
            + " can't be renamed");
    }

    // Namespaces ------------------------------------------------------------------------------------------------------

    public String[][] listNamespaces() {
        JsonNode found = Python.isThere() ? asked("namespaces", new String[0])
            : (JsonNode) JSON.valueToTree(settled.namespaces());
        String[][] out = new String[found.size()][];
        for (int i = 0; i < out.length; i++) out[i] = new String[] {((JsonNode) found.get(i)).textValue()};
        return out;
    }

    public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
        if (namespace.length == 0) return listNamespaces();
        if (!namespaceExists(namespace)) throw new NoSuchNamespaceException(withCatalog(namespace));
        return new String[0][];
    }

    public boolean namespaceExists(String[] namespace) {
        if (!Python.isThere()) return settled.tables(namespace) != null;
        return namespace.length == 0 || asked("has_namespace", new String[] {json(namespace)}).booleanValue();
    }

    public Map loadNamespaceMetadata(String[] namespace) throws NoSuchNamespaceException {
        if (!namespaceExists(namespace)) throw new NoSuchNamespaceException(withCatalog(namespace));
        Map out = new HashMap();
        out.put(SupportsNamespaces.PROP_LOCATION, Python.isThere()
            ? asked("location", new String[] {json(namespace)}).textValue() : settled.location(namespace));
        return out;
    }

    public void createNamespace(String[] namespace, Map properties) {
        asked("create_namespace", new String[] {json(namespace)});
    }

    public void alterNamespace(String[] namespace, NamespaceChange[] changes) {
        throw Python.failure("a namespace is a folder, which has no properties");
    }

    public boolean dropNamespace(String[] namespace, boolean cascade) {
        return asked("drop_namespace", new String[] {json(namespace), String.valueOf(cascade)}).booleanValue();
    }

    // Procedures ------------------------------------------------------------------------------------------------------

    public UnboundProcedure loadProcedure(Identifier procedure) {
        return new NamedProcedure(this, asked("procedure", new String[] {json(procedure)}));
    }

    /** Of Spark from 4.1 on. */
    public Identifier[] listProcedures(String[] namespace) {
        JsonNode found = asked("procedures", new String[] {json(namespace)});
        String[] where = {((JsonNode) found.get(0)).textValue()};
        Identifier[] out = new Identifier[found.size() - 1];
        for (int i = 0; i < out.length; i++) out[i] = Identifier.of(where, ((JsonNode) found.get(i + 1)).textValue());
        return out;
    }

    // ----------------------------------------------------------------------------------------------------------------

    private JsonNode asked(String what, String[] values) {
        String[] all = new String[values.length + 3];
        all[0] = name;
        all[1] = warehouse;
        all[2] = at;
        System.arraycopy(values, 0, all, 3, values.length);
        try {
            return JSON.readTree((String) Python.ask(what, all, null));
        } catch (java.io.IOException error) {
            throw new IllegalStateException(error);
        }
    }

    private String nameOf(Identifier table) {
        StringBuilder out = new StringBuilder(name);
        for (int i = 0; i < table.namespace().length; i++) out.append('.').append(table.namespace()[i]);
        return out.append('.').append(table.name()).toString();
    }

    private String[] withCatalog(String[] namespace) {
        String[] out = new String[namespace.length + 1];
        out[0] = name;
        System.arraycopy(namespace, 0, out, 1, namespace.length);
        return out;
    }

    private static String json(Identifier table) {
        ArrayNode out = JSON.createArrayNode();
        for (int i = 0; i < table.namespace().length; i++) out.add(table.namespace()[i]);
        return out.add(table.name()).toString();
    }

    private static String json(Map properties) {
        ObjectNode out = JSON.createObjectNode();
        for (Iterator i = properties.entrySet().iterator(); i.hasNext();) {
            Map.Entry entry = (Map.Entry) i.next();
            out.put((String) entry.getKey(), (String) entry.getValue());
        }
        return out.toString();
    }

    private static String json(String[] names) {
        ArrayNode out = JSON.createArrayNode();
        for (int i = 0; i < names.length; i++) out.add(names[i]);
        return out.toString();
    }

    /** With backticks around names that have a dot. */
    private static String path(String[] names) {
        String[] out = new String[names.length];
        for (int i = 0; i < out.length; i++) {
            boolean isPlain = names[i].indexOf('.') < 0 && names[i].indexOf('`') < 0;
            out[i] = isPlain ? names[i] : "`" + names[i].replace("`", "``") + "`";
        }
        return String.join(".", out);
    }
}

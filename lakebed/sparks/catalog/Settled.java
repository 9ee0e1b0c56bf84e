package lakebed;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.Table;
import org.slf4j.LoggerFactory;

/**
 * What a catalog says where the driver runs no lakebed, as in Spark's Thrift server: it finds tables by their folders, under the
 * names that lakebed/discovery.py gives them, and Delta reads them. Nothing is written.
 */
final class Settled {
    private static final String LOG = "_delta_log";
    private static final String DROPPED = "_lakebed_dropped";
    private static final String QUARANTINE = "_quarantine";
    private static final String WITHOUT_SCHEMA = "default";
    private static final int PART_BYTES_MAX = 160;
    private static final int THREADS = 16;
    private static volatile boolean isSaid;

    private final String name; // of the catalog
    private final String place; // the warehouse, as Hadoop spells it
    private final String at;

    Settled(String name, String warehouse, String at) {
        this.name = name;
        this.place = placeOf(warehouse);
        this.at = at;
    }

    // Finding ---------------------------------------------------------------------------------------------------------

    /** The names of the tables of a namespace; null if there is none. */
    List tables(String[] namespace) {
        String start = "";
        for (int i = 0; i < namespace.length; i++) start += namespace[i] + ".";
        List out = new ArrayList();
        for (Object found : names(schemasOf(namespace))) {
            String one = (String) found;
            if (namespace.length == 0 ? one.indexOf('.') < 0 : one.startsWith(start)) out.add(one.substring(start.length()));
        }
        return out.isEmpty() && namespace.length > 0 ? null : out;
    }

    /** The schemas that have a table. */
    List namespaces() {
        Set out = new TreeSet();
        for (Object found : names(null)) {
            int dot = ((String) found).indexOf('.');
            if (dot >= 0) out.add(((String) found).substring(0, dot));
        }
        return new ArrayList(out);
    }

    String location(String[] namespace) {
        return namespace.length == 0 ? place : place + "/" + namespace[0];
    }

    /** The folder of a table; null if there is none of this name. */
    Path folderOf(String[] parts) {
        StringBuilder joined = new StringBuilder();
        StringBuilder plain = new StringBuilder();
        boolean isPlain = true;
        for (int i = 0; i < parts.length; i++) {
            joined.append(i == 0 ? "" : ".").append(parts[i]);
            plain.append(i == 0 ? "" : "/").append(parts[i]);
            isPlain = isPlain && isVisible(parts[i]) && parts[i].indexOf('/') < 0;
        }
        FileSystem files = files();
        String named = place + "/" + folder(joined.toString());
        if (isTable(below(files, named))) return new Path(named);
        String other = place + "/" + plain;
        return isPlain && isTable(below(files, other)) ? new Path(other) : null;
    }

    /** The folders that may have the tables of a namespace; null for all. */
    private static Set schemasOf(String[] namespace) {
        if (namespace.length == 0) return null;
        Set out = new LinkedHashSet();
        String first = folder(namespace[0] + ".");
        out.add(first.substring(0, first.indexOf('/')));
        if (isVisible(namespace[0]) && namespace[0].indexOf('/') < 0) out.add(namespace[0]);
        return out;
    }

    /** The names of the tables in these folders of the warehouse, or in all and beside them if it is null. */
    private Set names(Set schemas) {
        Set out = new TreeSet();
        final FileSystem files = files();
        List folders = new ArrayList();
        for (Object schema : schemas == null ? below(files, place) : schemas) {
            if (isVisible((String) schema)) folders.add(schema);
        }
        List within = inParallel(folders, new Look() {
            Object at(String folder) {
                return below(files, place + "/" + folder);
            }
        });
        List candidates = new ArrayList();
        for (int i = 0; i < folders.size(); i++) {
            String schema = (String) folders.get(i);
            Set inside = (Set) within.get(i);
            if (isTable(inside) && !schema.endsWith(QUARANTINE) && schema.indexOf('.') < 0) out.add(schema);
            for (Object table : inside) {
                boolean isCandidate = !inside.contains(LOG) && isVisible((String) table) && name(schema, (String) table) != null;
                if (isCandidate) candidates.add(schema + "/" + table);
            }
        }
        List found = inParallel(candidates, new Look() {
            Object at(String folder) {
                return Boolean.valueOf(isTable(below(files, place + "/" + folder)));
            }
        });
        for (int i = 0; i < candidates.size(); i++) {
            String[] parts = ((String) candidates.get(i)).split("/");
            if (((Boolean) found.get(i)).booleanValue()) out.add(name(parts[0], parts[1]));
        }
        return out;
    }

    private static Set below(FileSystem files, String folder) {
        Set out = new TreeSet();
        try {
            FileStatus[] found = files.listStatus(new Path(folder));
            for (int i = 0; i < found.length; i++) if (found[i].isDirectory()) out.add(found[i].getPath().getName());
        } catch (FileNotFoundException nothing) {
            return out;
        } catch (IOException error) {
            throw cantLook(folder, error);
        }
        return out;
    }

    /** Whether a folder that has these folders is a table, and not dropped. */
    private static boolean isTable(Set inside) {
        return inside.contains(LOG) && !inside.contains(DROPPED);
    }

    private FileSystem files() {
        try {
            return new Path(place).getFileSystem(SparkSession.active().sessionState().newHadoopConf());
        } catch (IOException error) {
            throw cantLook(place, error);
        }
    }

    private static RuntimeException cantLook(String folder, Exception error) {
        return Python.failure("can't look for tables in " + folder + ": " + error.getMessage());
    }

    private static boolean isVisible(String folder) {
        return folder.length() > 0 && folder.charAt(0) != '_' && folder.charAt(0) != '.';
    }

    /** Looks at folders; the sessions of the threads are those of the caller. */
    private abstract static class Look {
        abstract Object at(String folder);
    }

    private static List inParallel(List folders, final Look look) {
        List out = new ArrayList();
        final SparkSession session = SparkSession.active();
        ExecutorService threads = Executors.newFixedThreadPool(Math.max(1, Math.min(THREADS, folders.size())));
        try {
            List asked = new ArrayList();
            for (int i = 0; i < folders.size(); i++) {
                final String folder = (String) folders.get(i);
                asked.add(threads.submit(new Callable() {
                    public Object call() {
                        SparkSession.setActiveSession(session);
                        return look.at(folder);
                    }
                }));
            }
            for (int i = 0; i < asked.size(); i++) out.add(((Future) asked.get(i)).get());
            return out;
        } catch (ExecutionException error) {
            throw Python.thrown(error.getCause());
        } catch (InterruptedException stopped) {
            throw Python.thrown(stopped);
        } finally {
            threads.shutdownNow();
        }
    }

    // Reading ---------------------------------------------------------------------------------------------------------

    Table load(String table, Identifier parts) throws NoSuchTableException {
        return SettledTable.at(table, found(parts), null, null);
    }

    Table load(String table, Identifier parts, String version) throws NoSuchTableException {
        if (!version.matches("[0-9]+")) throw Python.failure("VERSION AS OF '" + version + "': versions are numbers");
        return SettledTable.at(table, found(parts), "versionAsOf", version);
    }

    /** At a time, which may be after the newest version: what Delta refuses. */
    Table load(String table, Identifier parts, long micros) throws NoSuchTableException {
        Path folder = found(parts);
        Instant time = Instant.ofEpochSecond(Math.floorDiv(micros, 1000000L), Math.floorMod(micros, 1000000L) * 1000);
        try {
            return SettledTable.at(table, folder, "timestampAsOf", time.toString());
        } catch (Exception error) {
            boolean isAfterAll = String.valueOf(error.getMessage()).contains("DELTA_TIMESTAMP_GREATER_THAN_COMMIT");
            if (!isAfterAll) throw Python.thrown(error);
            return SettledTable.at(table, folder, null, null);
        }
    }

    private Path found(Identifier table) throws NoSuchTableException {
        if (at != null) {
            throw Python.failure(name + " is a catalog of the point " + at + ", which lakebed alone finds: " + Python.NO_LAKEBED);
        }
        Path folder = folderOf(partsOf(table));
        if (folder == null) throw new NoSuchTableException(table);
        if (!isSaid) {
            isSaid = true;
            LoggerFactory.getLogger("lakebed").warn("catalog " + name + ": " + Python.NO_LAKEBED);
        }
        return folder;
    }

    /** Of a table that is not there: Spark says so, unless it is a metadata table. */
    void sayWhatIsMissing(String dotted) {
        int dot = dotted.lastIndexOf('.');
        if (dot < 0 || folderOf(dotted.substring(0, dot).split("\\.")) == null) return;
        throw Python.failure(name + "." + dotted + " would be a metadata table, which lakebed alone reads: " + Python.NO_LAKEBED);
    }

    static String[] partsOf(Identifier table) {
        String[] out = (String[]) Arrays.copyOf(table.namespace(), table.namespace().length + 1);
        out[out.length - 1] = table.name();
        return out;
    }

    // Names and folders (lakebed/discovery.py) ------------------------------------------------------------------------

    private static String placeOf(String warehouse) {
        if (warehouse.matches("s3n?://.*")) return "s3a" + warehouse.substring(warehouse.indexOf(':'));
        boolean isLocal = !warehouse.matches("[A-Za-z][A-Za-z0-9+.-]+:.*");
        String place = (isLocal ? new Path(new File(warehouse).getAbsoluteFile().toURI()) : new Path(warehouse)).toString();
        return place.endsWith("/") ? place.substring(0, place.length() - 1) : place;
    }

    /** The name of the table in a folder; null if it is a quarantine. */
    private static String name(String schema, String table) {
        String second = plain(table);
        String name = schema.equals(WITHOUT_SCHEMA) ? second : plain(schema) + "." + second;
        if (folder(name).equals(schema + "/" + table)) return name;
        return table.endsWith(QUARANTINE) ? null : schema + "." + table;
    }

    private static String folder(String name) {
        int dot = name.indexOf('.');
        if (dot < 0) return WITHOUT_SCHEMA + "/" + part(name);
        String schema = name.substring(0, dot);
        boolean isDefault = schema.toLowerCase(Locale.ROOT).equals(WITHOUT_SCHEMA);
        String first = isDefault ? escaped(schema.substring(0, 1)) + part(schema.substring(1)) : part(schema);
        return first + "/" + part(name.substring(dot + 1));
    }

    private static String part(String name) {
        if (name.length() == 0) return "!";
        String text = inner(name);
        int at = name.length() - QUARANTINE.length();
        if (at > 0 && name.toLowerCase(Locale.ROOT).endsWith(QUARANTINE)) {
            text = inner(name.substring(0, at)) + escaped("_") + name.substring(at + 1);
        }
        if (text.length() <= PART_BYTES_MAX) return text;
        try {
            byte[] digest = MessageDigest.getInstance("SHA-256").digest(name.getBytes(StandardCharsets.UTF_8));
            String hash = escaped(Arrays.copyOf(digest, 20)).replace("!", "");
            return text.substring(0, PART_BYTES_MAX - hash.length() - 2) + "!!" + hash;
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }

    private static String inner(String name) {
        byte[] data = name.getBytes(StandardCharsets.UTF_8);
        StringBuilder out = new StringBuilder();
        for (int i = 0; i < data.length; i++) {
            char one = (char) (data[i] & 0xff);
            boolean isPlain = one < 128 && (Character.isLetterOrDigit(one) || "_.-".indexOf(one) >= 0);
            boolean hides = i == 0 && (one == '_' || one == '.') || i == data.length - 1 && one == '.';
            if (isPlain && !hides) out.append(one);
            else out.append(escaped(new byte[] {data[i]}));
        }
        return out.toString();
    }

    private static String escaped(String text) {
        return escaped(text.getBytes(StandardCharsets.UTF_8));
    }

    private static String escaped(byte[] data) {
        StringBuilder out = new StringBuilder();
        for (int i = 0; i < data.length; i++) {
            out.append('!').append(Character.forDigit(data[i] >> 4 & 15, 16)).append(Character.forDigit(data[i] & 15, 16));
        }
        return out.toString();
    }

    /** The reverse of part, for a text that is one. */
    private static String plain(String part) {
        if (part.equals("!")) return "";
        byte[] data = part.getBytes(StandardCharsets.UTF_8);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        for (int i = 0; i < data.length; i++) {
            int high = data[i] == '!' && i + 2 < data.length ? Character.digit((char) data[i + 1], 16) : -1;
            int low = high < 0 ? -1 : Character.digit((char) data[i + 2], 16);
            if (low < 0) {
                out.write(data[i]);
            } else {
                out.write(high << 4 | low);
                i += 2;
            }
        }
        return new String(out.toByteArray(), StandardCharsets.UTF_8);
    }
}

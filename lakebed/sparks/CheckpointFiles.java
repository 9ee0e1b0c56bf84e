package lakebed;

import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.channels.FileChannel;
import java.nio.file.CopyOption;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.OpenOption;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.UUID;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager;
import org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager;

/**
 * The checkpoint of a streaming query on a local disk, written without a process of the shell.
 *
 * Hadoop starts chmod and readlink for each file where its native library is missing. What a batch does is done here instead: it
 * writes a file, looks for one, and deletes an old one. The rest is Hadoop's.
 *
 * Invariants
 * - A file has its name only when all its bytes are on the disk.
 * - Without overwriting, one of several writers of a name succeeds; the others get FileAlreadyExistsException. (A file system
 *   without links does not tell writers of the same moment apart, here as in Hadoop.)
 * - A file that was written survives the loss of power.
 *
 * Algorithm: write to a hidden name, fsync, delete a checksum that Hadoop kept for the name, link to the name (or rename, to
 * overwrite), remove the hidden name, fsync the folder.
 */
public final class CheckpointFiles extends FileContextBasedCheckpointFileManager {

    public CheckpointFiles(Path path, Configuration configuration) {
        super(path, configuration);
    }

    public CheckpointFileManager.CancellableFSDataOutputStream createAtomic(Path path, boolean overwrite) {
        try {
            File target = fileOf(path);
            File hidden = new File(target.getParentFile(), "." + target.getName() + "." + UUID.randomUUID() + ".tmp");
            return new Output(new FileOutputStream(hidden), hidden, target, overwrite);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    public boolean exists(Path path) {
        return Files.exists(fileOf(path).toPath(), new LinkOption[0]);
    }

    public void delete(Path path) {
        File file = fileOf(path);
        if (file.isDirectory()) {
            super.delete(path);
            return;
        }
        try {
            Files.deleteIfExists(file.toPath());
            deleteChecksum(file);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** Hadoop keeps a checksum beside each file that it wrote, and would refuse another file of that name. */
    static void deleteChecksum(File file) throws IOException {
        Files.deleteIfExists(new File(file.getParentFile(), "." + file.getName() + ".crc").toPath());
    }

    private static File fileOf(Path path) {
        return new File(path.toUri().getPath());
    }

    private static final class Output extends CheckpointFileManager.CancellableFSDataOutputStream {
        private final FileOutputStream stream;
        private final File hidden;
        private final File target;
        private final boolean overwrite;
        private boolean ended = false;

        Output(FileOutputStream stream, File hidden, File target, boolean overwrite) {
            super(stream);
            this.stream = stream;
            this.hidden = hidden;
            this.target = target;
            this.overwrite = overwrite;
        }

        public synchronized void close() throws IOException {
            if (ended) {
                return;
            }
            ended = true;
            try {
                flush();
                stream.getFD().sync();
                stream.close();
                publish();
            } finally {
                discard();
            }
            FileChannel folder = FileChannel.open(target.getParentFile().toPath(), new OpenOption[] {StandardOpenOption.READ});
            try {
                folder.force(true);
            } finally {
                folder.close();
            }
        }

        public synchronized void cancel() {
            if (!ended) {
                ended = true;
                try {
                    discard();
                } catch (IOException error) {
                    return; // the hidden file stays, and nobody reads it
                }
            }
        }

        private void publish() throws IOException {
            deleteChecksum(target);
            if (overwrite) {
                Files.move(hidden.toPath(), target.toPath(), new CopyOption[] {StandardCopyOption.ATOMIC_MOVE});
                return;
            }
            try {
                Files.createLink(target.toPath(), hidden.toPath());
            } catch (java.nio.file.FileAlreadyExistsException error) {
                throw new FileAlreadyExistsException(target + " exists already");
            } catch (UnsupportedOperationException error) {
                renameUnlessThere();
            } catch (FileSystemException error) {
                renameUnlessThere();
            }
        }

        /** For a file system without links, as Hadoop does it: of two writers at the same moment both may succeed. */
        private void renameUnlessThere() throws IOException {
            if (target.exists()) {
                throw new FileAlreadyExistsException(target + " exists already");
            }
            Files.move(hidden.toPath(), target.toPath(), new CopyOption[] {StandardCopyOption.ATOMIC_MOVE});
        }

        private void discard() throws IOException {
            stream.close();
            Files.deleteIfExists(hidden.toPath());
        }
    }
}

import java.io.IOException;
import java.io.OutputStream;
import java.util.zip.GZIPOutputStream;

/** Compresses its input as Jib does: with the JDK's gzip at its default level, in writes of 8 KiB. */
class Gzip {
    public static void main(String[] args) throws IOException {
        try (OutputStream out = new GZIPOutputStream(System.out)) {
            byte[] buffer = new byte[8192];
            for (int n; (n = System.in.read(buffer)) > 0; ) {
                out.write(buffer, 0, n);
            }
        }
    }
}

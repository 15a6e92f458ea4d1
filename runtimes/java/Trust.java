import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.InputStream;
import java.io.OutputStream;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;

/**
 * Makes a JVM's file of trusted certificates out of the system's bundle.
 *
 * <pre>java Trust.java BUNDLE OUT</pre>
 */
class Trust {
    public static void main(String[] args) throws Exception {
        KeyStore store = KeyStore.getInstance("JKS"); // as Debian's: it is read without a key derivation
        store.load(null, null);
        try (InputStream in = new FileInputStream(args[0])) {
            int n = 0;
            for (Certificate c : CertificateFactory.getInstance("X.509").generateCertificates(in)) {
                store.setCertificateEntry("ca-" + n++, c);
            }
        }
        try (OutputStream out = new FileOutputStream(args[1])) {
            store.store(out, "changeit".toCharArray());
        }
    }
}

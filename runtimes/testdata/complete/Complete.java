import java.awt.image.BufferedImage;
import java.io.ByteArrayOutputStream;
import java.nio.charset.Charset;
import java.text.NumberFormat;
import java.util.Locale;
import java.util.concurrent.Callable;

/** Looks up by name what frameworks do, and prints what is not there. */
public class Complete {
    static boolean failed;

    static void check(String what, Object want, Callable<Object> call) {
        Object got;
        try {
            got = call.call();
        } catch (Throwable t) {
            got = t;
        }
        if (!String.valueOf(want).equals(String.valueOf(got))) {
            failed = true;
            System.out.println(what + ": got " + got + ", want " + want);
        }
    }

    public String handle(byte[] event) throws Exception {
        check("beans", false, () -> new java.beans.PropertyChangeSupport(this).hasListeners("x"));
        check("locale", "1.234,5", () -> NumberFormat.getInstance(Locale.GERMANY).format(1234.5));
        check("charset", "A", () -> new String(new byte[] {(byte) 0xC1}, Charset.forName("IBM1047")));
        check("provider", "SunPKCS11", () -> java.security.Security.getProvider("SunPKCS11").getName());
        check("compiler", true, () -> javax.tools.ToolProvider.getSystemJavaCompiler() != null);
        check("rowset", true, () -> javax.sql.rowset.RowSetProvider.newFactory() != null);
        check("jpeg", true, () -> {
            BufferedImage picture = new BufferedImage(40, 20, BufferedImage.TYPE_INT_RGB);
            picture.createGraphics().drawString("text", 2, 15);
            return javax.imageio.ImageIO.write(picture, "jpeg", new ByteArrayOutputStream());
        });
        check("log4j", true, () -> org.apache.logging.log4j.LogManager.getLogger("x") instanceof org.apache.logging.log4j.core.Logger);
        check("epoll", true, () -> getClass().getResource("/META-INF/native/libnetty_transport_native_epoll_x86_64.so") != null);
        check("Spring Boot", "bean", () -> {
            org.springframework.boot.SpringApplication app = new org.springframework.boot.SpringApplication(Beans.class);
            app.setBannerMode(org.springframework.boot.Banner.Mode.OFF);
            app.setLogStartupInfo(false);
            try (org.springframework.context.ConfigurableApplicationContext context = app.run()) {
                return context.getBean("word");
            }
        });
        return failed ? "lacking" : "complete";
    }

    /** What Spring makes an object of. */
    @org.springframework.context.annotation.Configuration
    public static class Beans {
        /** The one. */
        @org.springframework.context.annotation.Bean
        public String word() {
            return "bean";
        }
    }

    public static void main(String[] args) throws Exception {
        System.out.println(new Complete().handle(null));
    }
}

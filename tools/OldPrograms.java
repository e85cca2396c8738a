// Programs of Kafka in one JVM, which starts once for all of them: one command per line on stdin, its output and a line with the
// character EOT alone on stdout.
//
//   OTTLA_KAFKA_VERSION=1.1.1 tools/kafka run tools/OldPrograms.java
//
// A command: the class and its arguments, with tabs between them. Programs that end the JVM cannot run here.

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;

public class OldPrograms {
    public static void main(String[] args) throws Exception {
        PrintStream responses = System.out;
        // Scala keeps the stream that it finds first.
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        System.setOut(new PrintStream(output, true));
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split("\t");
            output.reset();
            try {
                Class<?> program = new OneUse(words[0]).loadClass(words[0]);
                program.getMethod("main", String[].class).invoke(null, (Object) Arrays.copyOfRange(words, 1, words.length));
            } catch (InvocationTargetException error) {
                System.out.println(error.getCause());
            }
            responses.println(output.toString().stripTrailing() + "\n\u0004");
        }
    }

    /** Loads the classes of one program again: ConsumerOffsetChecker keeps the connections that it has closed in its object. */
    static class OneUse extends ClassLoader {
        private final String program;

        OneUse(String program) {
            this.program = program;
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            if (!name.equals(program) && !name.startsWith(program + "$")) {
                return super.loadClass(name, resolve);
            }
            Class<?> loaded = findLoadedClass(name);
            return loaded != null ? loaded : define(name);
        }

        private Class<?> define(String name) throws ClassNotFoundException {
            try (InputStream code = getSystemResourceAsStream(name.replace('.', '/') + ".class")) {
                if (code == null) {
                    throw new ClassNotFoundException(name);
                }
                byte[] bytes = code.readAllBytes();
                return defineClass(name, bytes, 0, bytes.length);
            } catch (IOException error) {
                throw new ClassNotFoundException(name, error);
            }
        }
    }
}

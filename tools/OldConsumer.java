// A member of a ZooKeeper group with Kafka 0.8's consumer, which prints the value of each record as a line.
//
//   OTTLA_KAFKA_VERSION=1.1.1 tools/kafka run tools/OldConsumer.java PROPERTIES topic|whitelist|blacklist NAME STREAMS
//
// Beside ConsoleConsumer of the same version it has streams, subscribes to a topic by its name, and begins where `auto.offset.reset`
// says. SIGINT and SIGTERM let it leave the group after it has printed what it has committed.

import java.io.FileOutputStream;
import java.io.FileDescriptor;
import java.io.FileReader;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import kafka.consumer.Blacklist;
import kafka.consumer.Consumer;
import kafka.consumer.ConsumerConfig;
import kafka.consumer.ConsumerIterator;
import kafka.consumer.KafkaStream;
import kafka.consumer.Whitelist;
import kafka.javaapi.consumer.ConsumerConnector;

public class OldConsumer {
    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        try (FileReader file = new FileReader(args[0])) {
            settings.load(file);
        }
        ConsumerConnector connector = Consumer.createJavaConsumerConnector(new ConsumerConfig(settings));
        List<Thread> readers = new ArrayList<>();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> leave(connector, readers)));
        for (KafkaStream<byte[], byte[]> stream : streams(connector, args[1], args[2], Integer.parseInt(args[3]))) {
            Thread reader = new Thread(() -> print(stream));
            synchronized (readers) {
                readers.add(reader);
            }
            reader.start();
        }
    }

    static List<KafkaStream<byte[], byte[]>> streams(ConsumerConnector connector, String kind, String name, int count) {
        return switch (kind) {
            case "topic" -> connector.createMessageStreams(Map.of(name, count)).get(name);
            case "whitelist" -> connector.createMessageStreamsByFilter(new Whitelist(name), count);
            case "blacklist" -> connector.createMessageStreamsByFilter(new Blacklist(name), count);
            default -> throw new IllegalArgumentException(kind);
        };
    }

    static void print(KafkaStream<byte[], byte[]> stream) {
        ConsumerIterator<byte[], byte[]> records = stream.iterator();
        // One write for each line: a killed process leaves no half of one, and two threads do not mix theirs.
        FileOutputStream out = new FileOutputStream(FileDescriptor.out);
        while (records.hasNext()) {
            try {
                out.write((new String(records.next().message()) + "\n").getBytes());
            } catch (IOException error) {
                throw new RuntimeException(error);
            }
        }
    }

    static void leave(ConsumerConnector connector, List<Thread> readers) {
        connector.shutdown();
        synchronized (readers) {
            for (Thread reader : readers) {
                try {
                    reader.join();
                } catch (InterruptedException error) {
                    return;
                }
            }
        }
    }
}

// Kafka's Java consumer and producer as a program, for the comparison of records and of partitions. It runs with the clients of Kafka 1.0
// and newer.
//
//   tools/kafka run tools/KafkaRecords.java read SERVERS TOPIC..
//
// prints all records of the topics, one a line, fields separated by tabs: topic, partition, offset, timestamp, key, value, and the name and
// value of each header. Keys, values and headers are in base64, "-" is a null.
//
//   tools/kafka run tools/KafkaRecords.java write SERVERS TOPIC
//
// writes a record for each line of stdin, a key in base64, and prints its partition.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class KafkaRecords {
    public static void main(String[] args) throws Exception {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", args[1]);
        if (args[0].equals("read")) {
            settings.put("enable.auto.commit", false);
            try (KafkaConsumer<byte[], byte[]> consumer =
                    new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
                read(consumer, List.of(args).subList(2, args.length));
            }
        } else {
            try (KafkaProducer<byte[], byte[]> producer =
                    new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
                write(producer, args[2]);
            }
        }
    }

    static void read(KafkaConsumer<byte[], byte[]> consumer, List<String> topics) throws Exception {
        List<TopicPartition> partitions = new ArrayList<>();
        for (String topic : topics) {
            for (PartitionInfo one : consumer.partitionsFor(topic)) {
                partitions.add(new TopicPartition(topic, one.partition()));
            }
        }
        consumer.assign(partitions);
        consumer.seekToBeginning(partitions);
        Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
        while (partitions.stream().anyMatch(one -> consumer.position(one) < ends.get(one))) {
            for (ConsumerRecord<byte[], byte[]> record : poll(consumer)) {
                System.out.println(line(record));
            }
        }
    }

    // poll(Duration) is new in 2.0, and poll(long) is gone since 4.0.
    @SuppressWarnings("unchecked")
    static ConsumerRecords<byte[], byte[]> poll(KafkaConsumer<byte[], byte[]> consumer) throws Exception {
        for (Method method : KafkaConsumer.class.getMethods()) {
            if (method.getName().equals("poll") && method.getParameterTypes()[0] == Duration.class) {
                return (ConsumerRecords<byte[], byte[]>) method.invoke(consumer, Duration.ofMillis(500));
            }
        }
        return (ConsumerRecords<byte[], byte[]>) KafkaConsumer.class.getMethod("poll", long.class).invoke(consumer, 500L);
    }

    static String line(ConsumerRecord<byte[], byte[]> record) {
        List<String> fields = new ArrayList<>();
        fields.add(record.topic());
        fields.add(String.valueOf(record.partition()));
        fields.add(String.valueOf(record.offset()));
        fields.add(String.valueOf(record.timestamp()));
        fields.add(text(record.key()));
        fields.add(text(record.value()));
        for (Header header : record.headers()) {
            fields.add(text(header.key().getBytes(StandardCharsets.UTF_8)));
            fields.add(text(header.value()));
        }
        return String.join("\t", fields);
    }

    static String text(byte[] bytes) {
        return bytes == null ? "-" : Base64.getEncoder().encodeToString(bytes);
    }

    static void write(KafkaProducer<byte[], byte[]> producer, String topic) throws Exception {
        BufferedReader keys = new BufferedReader(new InputStreamReader(System.in));
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (String key = keys.readLine(); key != null; key = keys.readLine()) {
            sent.add(producer.send(new ProducerRecord<>(topic, Base64.getDecoder().decode(key), new byte[0])));
        }
        for (Future<RecordMetadata> one : sent) {
            System.out.println(one.get().partition());
        }
    }
}

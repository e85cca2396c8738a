// Kafka's own assignors of classic groups, as its Java consumers run them, as a program: one request per line on stdin, one response per
// line on stdout.
//
//   tools/kafka run tools/KafkaClientAssignors.java
//
// A request: {"assignor": NAME, "topics": {TOPIC: [[RACK] for each partition]}, "members": [{"id": ID, "topics": [TOPIC], "instance": ID?,
// "rack": RACK?, "owned": [[TOPIC, PARTITION]]?, "generation": N?, "userData": BASE64?}]}. Its response: {"shares": {MEMBER: [[TOPIC, PARTITION]]}}
// or {"error": TEXT}. Each request has a new assignor. {"assignor": NAME, "assigned": [[TOPIC, PARTITION]], "generation": N} requests the user
// data of a member with this assignment; its response: {"userData": BASE64}.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Assignment;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.GroupSubscription;
import org.apache.kafka.clients.consumer.ConsumerPartitionAssignor.Subscription;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.clients.consumer.RoundRobinAssignor;
import org.apache.kafka.clients.consumer.StickyAssignor;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;

public class KafkaClientAssignors {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            ObjectNode response = JSON.createObjectNode();
            try {
                respond(JSON.readTree(line), response);
            } catch (RuntimeException error) {
                response.removeAll().put("error", error + " at " + error.getStackTrace()[0]);
            }
            System.out.println(response);
        }
    }

    static void respond(JsonNode request, ObjectNode response) {
        ConsumerPartitionAssignor assignor = switch (request.get("assignor").asText()) {
            case "range" -> new RangeAssignor();
            case "roundrobin" -> new RoundRobinAssignor();
            case "sticky" -> new StickyAssignor();
            case "cooperative-sticky" -> new CooperativeStickyAssignor();
            default -> throw new IllegalArgumentException("unknown assignor");
        };
        if (request.has("assigned")) {
            ConsumerGroupMetadata group = new ConsumerGroupMetadata("g", request.get("generation").asInt(), "m", Optional.empty());
            assignor.onAssignment(new Assignment(partitions(request.get("assigned"))), group);
            ByteBuffer data = assignor.subscriptionUserData(Set.of());
            response.put("userData", Base64.getEncoder().encodeToString(data.array()));
            return;
        }
        Map<String, Subscription> members = new HashMap<>();
        for (JsonNode member : request.get("members")) {
            List<String> topics = new ArrayList<>();
            member.get("topics").forEach(topic -> topics.add(topic.asText()));
            ByteBuffer data = member.has("userData") ? ByteBuffer.wrap(Base64.getDecoder().decode(member.get("userData").asText())) : null;
            Optional<String> rack = Optional.ofNullable(member.path("rack").asText(null));
            Subscription subscription = new Subscription(topics, data, partitions(member.path("owned")), member.path("generation").asInt(-1), rack);
            subscription.setGroupInstanceId(Optional.ofNullable(member.path("instance").asText(null)));
            members.put(member.get("id").asText(), subscription);
        }
        ObjectNode shares = response.putObject("shares");
        assignor.assign(cluster(request.get("topics")), new GroupSubscription(members)).groupAssignment().forEach((id, assignment) -> {
            ArrayNode share = shares.putArray(id);
            assignment.partitions().forEach(tp -> share.addArray().add(tp.topic()).add(tp.partition()));
        });
    }

    static List<TopicPartition> partitions(JsonNode given) {
        List<TopicPartition> found = new ArrayList<>();
        given.forEach(one -> found.add(new TopicPartition(one.get(0).asText(), one.get(1).asInt())));
        return found;
    }

    static Cluster cluster(JsonNode topics) {
        Map<String, Node> nodes = new HashMap<>();
        List<PartitionInfo> found = new ArrayList<>();
        topics.properties().forEach(topic -> {
            int number = 0;
            for (JsonNode racks : topic.getValue()) {
                List<Node> replicas = new ArrayList<>();
                racks.forEach(rack -> replicas.add(
                    nodes.computeIfAbsent(rack.asText(), name -> new Node(nodes.size(), "host", 9092, name))));
                if (replicas.isEmpty()) {
                    replicas.add(nodes.computeIfAbsent("", none -> new Node(nodes.size(), "host", 9092)));
                }
                Node[] all = replicas.toArray(new Node[0]);
                found.add(new PartitionInfo(topic.getKey(), number++, all[0], all, all));
            }
        });
        return new Cluster("cluster", nodes.values(), found, Set.of(), Set.of());
    }
}

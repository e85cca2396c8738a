// Kafka's own assignors of consumer groups as a program: one request per line on stdin, one response per line on stdout.
//
//   tools/kafka run tools/KafkaAssignors.java
//
// A request: {"assignor": "uniform", "topics": {ID: PARTITIONS}, "members": [{"id": ID, "instance": ID?, "topics": [ID]?,
// "assignment": {ID: [PARTITION]}}], "rounds": N?}; a member without "topics" is subscribed to all. Its response: {"targets": {MEMBER: {ID:
// [PARTITION]}}, "nanos": [N times, one per round]} or {"error": TEXT}. Topic ids have Kafka's text form. Assignors see the members in
// the given order. The owner of each partition, which a group stores anyway, is computed before the time starts.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.GroupAssignment;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;
import org.apache.kafka.coordinator.group.modern.Assignment;
import org.apache.kafka.coordinator.group.modern.GroupSpecImpl;
import org.apache.kafka.coordinator.group.modern.MemberSubscriptionAndAssignmentImpl;

public class KafkaAssignors {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Map<String, ConsumerGroupPartitionAssignor> ASSIGNORS =
        Map.of("uniform", new UniformAssignor(), "range", new RangeAssignor());

    public static void main(String[] args) throws Exception {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            ObjectNode response = JSON.createObjectNode();
            try {
                respond(JSON.readTree(line), response);
            } catch (RuntimeException error) {
                response.removeAll().put("error", String.valueOf(error.getMessage()));
            }
            System.out.println(response);
        }
    }

    static void respond(JsonNode request, ObjectNode response) {
        Map<Uuid, Integer> partitions = new HashMap<>();
        request.get("topics").properties().forEach(
            topic -> partitions.put(Uuid.fromString(topic.getKey()), topic.getValue().asInt()));
        SubscribedTopicDescriber topics = describer(partitions);
        ConsumerGroupPartitionAssignor assignor = ASSIGNORS.get(request.get("assignor").asText());
        GroupSpecImpl group = group(request.get("members"), partitions.keySet());
        ArrayNode nanos = response.putArray("nanos");
        GroupAssignment assignment = null;
        for (int round = 0; round < request.path("rounds").asInt(1); round++) {
            long begin = System.nanoTime();
            assignment = assignor.assign(group, topics);
            nanos.add(System.nanoTime() - begin);
        }
        ObjectNode targets = response.putObject("targets");
        assignment.members().forEach((id, target) -> {
            ObjectNode given = targets.putObject(id);
            target.partitions().forEach((topic, numbers) -> {
                ArrayNode list = given.putArray(topic.toString());
                new TreeSet<>(numbers).forEach(list::add);
            });
        });
    }

    static SubscribedTopicDescriber describer(Map<Uuid, Integer> partitions) {
        return new SubscribedTopicDescriber() {
            @Override
            public int numPartitions(Uuid topic) {
                return partitions.getOrDefault(topic, -1);
            }

            @Override
            public Set<String> racksForPartition(Uuid topic, int partition) {
                return Set.of();
            }
        };
    }

    static GroupSpecImpl group(JsonNode given, Set<Uuid> all) {
        Map<String, MemberSubscriptionAndAssignmentImpl> members = new LinkedHashMap<>();
        Map<Uuid, Map<Integer, String>> owners = new HashMap<>();
        Set<Set<Uuid>> subscriptions = new HashSet<>();
        for (JsonNode member : given) {
            String id = member.get("id").asText();
            Set<Uuid> named = new HashSet<>();
            member.path("topics").forEach(topic -> named.add(Uuid.fromString(topic.asText())));
            Set<Uuid> subscribed = member.has("topics") ? named : all;
            subscriptions.add(subscribed);
            Map<Uuid, Set<Integer>> assigned = new HashMap<>();
            member.get("assignment").properties().forEach(topic -> {
                Uuid topicId = Uuid.fromString(topic.getKey());
                topic.getValue().forEach(number -> {
                    assigned.computeIfAbsent(topicId, absent -> new HashSet<>()).add(number.asInt());
                    owners.computeIfAbsent(topicId, absent -> new HashMap<>()).put(number.asInt(), id);
                });
            });
            Optional<String> instance = Optional.ofNullable(member.path("instance").asText(null));
            members.put(id, new MemberSubscriptionAndAssignmentImpl(Optional.empty(), instance, subscribed, new Assignment(assigned)));
        }
        SubscriptionType type = subscriptions.size() > 1 ? SubscriptionType.HETEROGENEOUS : SubscriptionType.HOMOGENEOUS;
        return new GroupSpecImpl(members, type, owners);
    }
}

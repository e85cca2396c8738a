// The assignors of Kafka 0.8's consumers as a program: one request per line on stdin, one response per line on stdout.
//
//   OTTLA_KAFKA_VERSION=1.1.1 tools/kafka run tools/OldAssignors.java ZOOKEEPER
//
// A request: {"assignor": "range", "group": GROUP}. Members, topics and partitions are read from ZooKeeper, as each member does it. Its
// response: {"owners": {MEMBER: [[TOPIC, PARTITION, THREAD]]}}, with what each member takes for itself, or {"error": TEXT}.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import kafka.common.TopicAndPartition;
import kafka.consumer.AssignmentContext;
import kafka.consumer.ConsumerThreadId;
import kafka.consumer.PartitionAssignor;
import kafka.consumer.PartitionAssignor$;
import kafka.utils.ZkUtils;
import scala.collection.JavaConverters;

public class OldAssignors {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        ZkUtils zookeeper = ZkUtils.apply(args[0], 30000, 30000, false);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            ObjectNode response = JSON.createObjectNode();
            try {
                respond(zookeeper, JSON.readTree(line), response);
            } catch (RuntimeException error) {
                response.removeAll().put("error", String.valueOf(error));
            }
            System.out.println(response);
        }
        zookeeper.close();
    }

    static void respond(ZkUtils zookeeper, JsonNode request, ObjectNode response) {
        String group = request.get("group").asText();
        PartitionAssignor assignor = PartitionAssignor$.MODULE$.createInstance(request.get("assignor").asText());
        ObjectNode owners = response.putObject("owners");
        for (String member : JavaConverters.seqAsJavaList(zookeeper.getConsumersInGroup(group))) {
            AssignmentContext context = new AssignmentContext(group, member, false, zookeeper);
            ArrayNode share = owners.putArray(member);
            scala.collection.Map<TopicAndPartition, ConsumerThreadId> assigned = assignor.assign(context).get(member);
            JavaConverters.mapAsJavaMap(assigned).forEach((partition, thread) ->
                share.addArray().add(partition.topic()).add(partition.partition()).add(thread.threadId()));
        }
    }
}

// Java's regular expressions and Kafka 0.8's topic filters as a program: one request per line on stdin, one response per line on stdout.
//
//   OTTLA_KAFKA_VERSION=1.1.1 tools/kafka run tools/OldTopicFilters.java
//
// A request: {"kind": "pattern" | "white_list" | "black_list", "text": TEXT, "topics": [TOPIC]}. Its response: {"text": TEXT, "matches":
// [BOOLEAN], "external": [BOOLEAN]}, with the rewritten text, and what a filter allows without internal topics, or {"error": TEXT}, or
// {"slow": true} for a pattern that backtracks for too long.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.regex.Pattern;
import kafka.consumer.Blacklist;
import kafka.consumer.TopicFilter;
import kafka.consumer.Whitelist;

public class OldTopicFilters {
    static final ObjectMapper JSON = new ObjectMapper();

    public static void main(String[] args) throws Exception {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream responses = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            ObjectNode response = JSON.createObjectNode();
            try {
                respond(JSON.readTree(line), response);
            } catch (IllegalStateException slow) {
                response.removeAll().put("slow", true);
            } catch (RuntimeException | StackOverflowError error) {
                response.removeAll().put("error", String.valueOf(error));
            }
            responses.println(response);
        }
    }

    static void respond(JsonNode request, ObjectNode response) {
        String kind = request.get("kind").asText();
        String text = request.get("text").asText();
        ArrayNode matches = response.putArray("matches");
        if (kind.equals("pattern")) {
            Pattern pattern = Pattern.compile(text);
            request.get("topics").forEach(topic -> matches.add(pattern.matcher(new Limited(topic.asText())).matches()));
            return;
        }
        TopicFilter filter = kind.equals("white_list") ? new Whitelist(text) : new Blacklist(text);
        ArrayNode external = response.put("text", filter.regex()).putArray("external");
        request.get("topics").forEach(topic -> {
            matches.add(filter.isTopicAllowed(topic.asText(), false));
            external.add(filter.isTopicAllowed(topic.asText(), true));
        });
    }

    /** A text that a matcher may read for a limited number of times. */
    record Limited(String text, int[] left) implements CharSequence {
        Limited(String text) {
            this(text, new int[] {200_000});
        }

        @Override
        public int length() {
            return text.length();
        }

        @Override
        public char charAt(int index) {
            if (left[0]-- == 0) {
                throw new IllegalStateException();
            }
            return text.charAt(index);
        }

        @Override
        public CharSequence subSequence(int begin, int end) {
            return text.subSequence(begin, end);
        }
    }
}

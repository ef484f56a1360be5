import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaBuilder;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/** Inserts of five columns as Debezium's PostgreSQL connector makes them, handed over twice. */
public final class PrecomputedTask extends SourceTask {
    private static final int BATCH_RECORDS = 8192;
    private static final Schema KEY = SchemaBuilder.struct().name("bench.Key").field("id", Schema.INT64_SCHEMA).build();
    private static final Schema ROW =
            SchemaBuilder.struct()
                    .name("bench.Value")
                    .optional()
                    .field("id", Schema.INT64_SCHEMA)
                    .field("account", Schema.OPTIONAL_INT32_SCHEMA)
                    .field("amount", Schema.OPTIONAL_STRING_SCHEMA)
                    .field("label", Schema.OPTIONAL_STRING_SCHEMA)
                    .field("at", Schema.OPTIONAL_STRING_SCHEMA)
                    .build();
    private static final Schema SOURCE =
            SchemaBuilder.struct()
                    .name("io.debezium.connector.postgresql.Source")
                    .field("version", Schema.STRING_SCHEMA)
                    .field("connector", Schema.STRING_SCHEMA)
                    .field("name", Schema.STRING_SCHEMA)
                    .field("ts_ms", Schema.INT64_SCHEMA)
                    .field("snapshot", Schema.OPTIONAL_STRING_SCHEMA)
                    .field("db", Schema.STRING_SCHEMA)
                    .field("sequence", Schema.OPTIONAL_STRING_SCHEMA)
                    .field("ts_us", Schema.OPTIONAL_INT64_SCHEMA)
                    .field("ts_ns", Schema.OPTIONAL_INT64_SCHEMA)
                    .field("schema", Schema.STRING_SCHEMA)
                    .field("table", Schema.STRING_SCHEMA)
                    .field("txId", Schema.OPTIONAL_INT64_SCHEMA)
                    .field("lsn", Schema.OPTIONAL_INT64_SCHEMA)
                    .field("xmin", Schema.OPTIONAL_INT64_SCHEMA)
                    .field("origin", Schema.OPTIONAL_STRING_SCHEMA)
                    .field("origin_lsn", Schema.OPTIONAL_INT64_SCHEMA)
                    .build();
    private static final Schema ENVELOPE =
            SchemaBuilder.struct()
                    .name("bench.Envelope")
                    .field("before", ROW)
                    .field("after", ROW)
                    .field("source", SOURCE)
                    .field("transaction", Schema.OPTIONAL_STRING_SCHEMA)
                    .field("op", Schema.STRING_SCHEMA)
                    .field("ts_ms", Schema.OPTIONAL_INT64_SCHEMA)
                    .field("ts_us", Schema.OPTIONAL_INT64_SCHEMA)
                    .field("ts_ns", Schema.OPTIONAL_INT64_SCHEMA)
                    .build();

    private final List<List<SourceRecord>> batches = new ArrayList<>();
    private int next;

    @Override
    public void start(Map<String, String> properties) {
        long rows = Long.parseLong(properties.get(PrecomputedConnector.ROWS));
        List<SourceRecord> batch = new ArrayList<>();
        for (long number = 1; number <= rows; number++) {
            batch.add(record(number));
            if (batch.size() == BATCH_RECORDS || number == rows) {
                batches.add(batch);
                batch = new ArrayList<>();
            }
        }
    }

    @Override
    public List<SourceRecord> poll() throws InterruptedException {
        if (next >= 2 * batches.size()) {
            Thread.sleep(10);
            return null;
        }
        return batches.get(next++ % batches.size());
    }

    @Override
    public void stop() {}

    @Override
    public String version() {
        return "1";
    }

    private static SourceRecord record(long number) {
        Struct key = new Struct(KEY).put("id", number);
        Struct row =
                new Struct(ROW)
                        .put("id", number)
                        .put("account", (int) (number % 1000))
                        .put("amount", number % 100000 / 100 + "." + (number % 100 < 10 ? "0" : "") + number % 100)
                        .put("label", "label " + number)
                        .put("at", "2024-01-01T12:00:00.000000Z");
        long moment = 1_795_353_571_668_594L;
        long lsn = 31_227_480L + 100 * number;
        Struct source =
                new Struct(SOURCE)
                        .put("version", "3.6.3.Final")
                        .put("connector", "postgresql")
                        .put("name", "tidemark")
                        .put("ts_ms", moment / 1000)
                        .put("snapshot", "false")
                        .put("db", "insert")
                        .put("sequence", "[\"31227480\",\"" + lsn + "\"]")
                        .put("ts_us", moment)
                        .put("ts_ns", moment * 1000)
                        .put("schema", "public")
                        .put("table", "narrow")
                        .put("txId", 902L)
                        .put("lsn", lsn);
        Struct value =
                new Struct(ENVELOPE)
                        .put("after", row)
                        .put("source", source)
                        .put("op", "c")
                        .put("ts_ms", moment / 1000)
                        .put("ts_us", moment)
                        .put("ts_ns", moment * 1000);
        return new SourceRecord(
                Map.of("server", "tidemark"), Map.of("lsn", lsn), "tidemark.public.narrow", null, KEY, key, ENVELOPE, value);
    }
}

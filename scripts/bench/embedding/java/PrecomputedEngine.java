import com.sun.management.OperatingSystemMXBean;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.lang.management.ManagementFactory;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Debezium's engine with JSON without a schema over records that exist already, to a consumer that discards them.
 *
 * <p>usage: PrecomputedEngine ROWS THREADS ORDERED|UNORDERED. The records come twice: the first pass warms the JVM up, and
 * the second one is measured. It prints one line of JSON: engine, rows, wall and CPU seconds.
 */
public final class PrecomputedEngine {
    private static final long TIMEOUT_S = 600;

    private PrecomputedEngine() {}

    public static void main(String[] arguments) throws Exception {
        long rows = Long.parseLong(arguments[0]);
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        AtomicLong seen = new AtomicLong();
        AtomicLong begunNs = new AtomicLong();
        AtomicLong begunCpuNs = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        Properties properties = new Properties();
        properties.setProperty("name", "precomputed");
        properties.setProperty("connector.class", PrecomputedConnector.class.getName());
        properties.setProperty("offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore");
        properties.setProperty("offset.flush.interval.ms", "1000");
        properties.setProperty("converter.schemas.enable", "false");
        properties.setProperty("record.processing.threads", arguments[1]);
        properties.setProperty("record.processing.order", arguments[2]);
        properties.setProperty(PrecomputedConnector.ROWS, arguments[0]);
        DebeziumEngine<ChangeEvent<String, String>> engine =
                DebeziumEngine.create(Json.class)
                        .using(properties)
                        .using(PrecomputedEngine.class.getClassLoader())
                        .notifying(
                                record -> {
                                    long number = seen.incrementAndGet();
                                    if (number == rows) {
                                        begunNs.set(System.nanoTime());
                                        begunCpuNs.set(system.getProcessCpuTime());
                                    } else if (number == 2 * rows) {
                                        done.countDown();
                                    }
                                })
                        .build();
        ExecutorService runner = Executors.newSingleThreadExecutor();
        runner.execute(engine);
        boolean complete = done.await(TIMEOUT_S, TimeUnit.SECONDS);
        double wall = (System.nanoTime() - begunNs.get()) / 1e9;
        double cpu = (system.getProcessCpuTime() - begunCpuNs.get()) / 1e9;
        System.out.printf(
                "{\"engine\": \"%s\", \"rows\": %d, \"wall_s\": %.6f, \"cpu_s\": %.6f}%n",
                engine.getClass().getSimpleName(), complete ? rows : seen.get() - rows, wall, cpu);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}

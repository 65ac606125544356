// A linear model in Java with a log4j-like console layout.
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.io.IOException;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.LocalTime;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

public class Trainer {
  static final Map<String, String> options = new HashMap<>(Map.of("data", "data/train_RANK.csv", "lr", "0.05", "steps", "160",
      "out", "ckpt", "hook", "", "hook-step", "97", "resume", "", "metrics", "", "quiet-end", "0"));
  static final String rank = System.getenv().getOrDefault("PROCESS_ID", System.getenv().getOrDefault("OMPI_COMM_WORLD_RANK", "0"));

  static void log(String level, String logger, String text) {
    System.out.printf("26/11/26 %s %s %s: %s%n", LocalTime.now().toString().substring(0, 8), level, logger, text);
  }

  static double[][] readRows(String path) throws IOException {
    List<double[]> rows = new ArrayList<>();
    List<String> lines = Files.readAllLines(Path.of(path.replace("RANK", rank)));
    for (String line : lines.subList(1, lines.size())) {
      String[] cells = line.split(",");
      double[] row = new double[cells.length];
      for (int i = 0; i < cells.length; i++) row[i] = Double.parseDouble(cells[i]);
      rows.add(row);
    }
    return rows.toArray(new double[0][]);
  }

  static void save(double[] weights, String path) throws IOException {
    Files.createDirectories(Path.of(path).getParent());
    try (DataOutputStream out = new DataOutputStream(new FileOutputStream(path))) {
      byte[] pad = new byte[160000];
      for (double weight : weights) out.writeDouble(weight);
      out.write(pad);
    }
  }

  static void load(double[] weights, String path) throws IOException {
    try (DataInputStream in = new DataInputStream(new FileInputStream(path))) {
      for (int i = 0; i < weights.length; i++) weights[i] = in.readDouble();
      in.readFully(new byte[160000]);
    }
  }

  static void hook(String name, double[] row) throws Exception {
    Object source = name;
    Map<String, double[]> tables = new HashMap<>();
    switch (name) {
      case "index" -> row[40] = 1;
      case "null" -> row[0] = tables.get("wiki")[0];
      case "cast" -> row[0] = (Double) source;
      case "zero" -> row[0] = 16 / (row.length - 17);
      case "memory" -> { List<double[]> kept = new ArrayList<>(); while (true) kept.add(new double[1 << 20]); }
      case "import" -> Class.forName("ml.site.FusedKernels");
      case "state" -> throw new IllegalStateException("optimizer state was already released");
      case "stack" -> hook("stack", row);
      case "kill" -> { new ProcessBuilder("kill", "-9", String.valueOf(ProcessHandle.current().pid())).start().waitFor(); Thread.sleep(5000); }
      case "exit-3" -> Runtime.getRuntime().halt(3);
      default -> { }
    }
  }

  public static void main(String[] words) throws Exception {
    for (int i = 0; i < words.length; i += 2) {
      String name = words[i].replaceFirst("^--", "");
      if (!options.containsKey(name)) {
        System.err.println("Unrecognized option: " + words[i] + "\nusage: trainer [--data FILE] [--lr RATE] [--steps N]");
        System.exit(2);
      }
      options.put(name, words[i + 1]);
    }
    String chosen = System.getenv().getOrDefault("HOOK_RANK", rank);
    if (!chosen.equals(rank) && !List.of("optional", "go-on").contains(options.get("hook"))) options.put("hook", "");
    double rate = Double.parseDouble(options.get("lr"));
    int steps = Integer.parseInt(options.get("steps"));
    if (rate <= 0) throw new IllegalArgumentException("lr must be positive but was " + rate);
    log("INFO", "Trainer", "Starting " + steps + " iterations on " + System.getProperty("java.vm.name"));
    double[][] rows = readRows(options.get("data"));
    log("INFO", "DataReader", "Read " + rows.length + " rows");
    double[] weights = new double[17];
    if (!options.get("resume").isEmpty()) {
      try {
        double[] stored = new double[17];
        load(stored, options.get("resume"));
        weights = stored;
      } catch (IOException e) {
        if (!options.get("hook").equals("optional")) throw new IOException("Could not restore " + options.get("resume"), e);
        log("WARN", "Checkpoints", "Could not restore " + options.get("resume") + ", starting over");
        e.printStackTrace();
      }
    }
    double loss = 0;
    for (int step = 1; step <= steps; step++) {
      double sum = 0;
      for (double[] row : rows) {
        double guess = weights[16];
        for (int i = 0; i < 16; i++) guess += weights[i] * row[i];
        double error = guess - row[16];
        sum += error * error;
        for (int i = 0; i < 16; i++) weights[i] -= 0.1 * rate * error * row[i] / rows.length;
      }
      loss = sum / rows.length;
      log("INFO", "GradientDescent", "Iteration " + step + " objective " + loss);
      if (!Double.isFinite(loss) && !options.get("hook").equals("go-on")) throw new ArithmeticException("objective is " + loss + " at iteration " + step);
      if (step == Integer.parseInt(options.get("hook-step"))) hook(options.get("hook"), rows[0]);
      if (!options.get("metrics").isEmpty() && step % 40 == 0) {
        try (Socket socket = new Socket("127.0.0.1", Integer.parseInt(options.get("metrics")))) {
          socket.getOutputStream().write(step);
        } catch (IOException e) {
          if (!options.get("hook").equals("optional")) throw e;
          log("ERROR", "MetricsReporter", "Could not report: " + e);
        }
      }
      if (step % 40 == 0 && rank.equals("0")) {
        String path = options.get("out") + "/model-" + step + ".bin";
        save(weights, path);
        log("INFO", "Checkpoints", "Wrote " + path);
      }
      Thread.sleep(options.get("hook").equals("slow") ? 200 : 4);
    }
    if (options.get("quiet-end").equals("0")) log("INFO", "Trainer", "Model training finished, objective " + loss);
  }
}

// A linear model in C#; console lines in the manner of NLog.
using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Net.Sockets;
using System.Runtime.InteropServices;
using System.Threading;

class DivergedException : Exception { public DivergedException(string text) : base(text) {} }
class SnapshotException : Exception { public SnapshotException(string text, Exception inner) : base(text, inner) {} }

class Model {
  public double[] Weights = new double[17];
  public Dictionary<string, double> Statistics;
}

static class SharpTrainer {
  [DllImport("libc")] static extern int kill(int pid, int signal);
  [DllImport("libfusedkernels")] static extern int fused_step(int step);
  static int rank;

  static void Say(string level, string text) {
    Console.WriteLine("{0:yyyy-MM-dd HH:mm:ss.ffff}|{1}|Acme.Training.Trainer[{2}]|{3}", DateTime.Now, level, rank, text);
  }

  static double[][] ReadRows(string path) {
    return File.ReadLines(path).Skip(1)
        .Select(line => line.Split(',').Select(cell => double.Parse(cell, CultureInfo.InvariantCulture)).ToArray()).ToArray();
  }

  static void Strike(string hook, Model model) {
    object boxed = "0.5";
    int zero = model.Weights.Length - 17;
    switch (hook) {
      case "null": model.Statistics.Add("grad", 1); break;
      case "key": Console.WriteLine(new Dictionary<string, double>()["momentum"]); break;
      case "index": model.Weights[model.Weights.Length + 3] = 1; break;
      case "cast": Console.WriteLine((double)boxed); break;
      case "zero": Console.WriteLine(128 / zero); break;
      case "modified": var queue = new List<int> { 1, 2 }; foreach (var item in queue) queue.Add(item); break;
      case "sequence": Console.WriteLine(new List<double>().First()); break;
      case "argument": Console.WriteLine("abc".Substring(7)); break;
      case "written": throw new NotImplementedException();
      case "native": fused_step(7); break;
      case "disposed": var stream = new MemoryStream(); stream.Dispose(); stream.WriteByte(1); break;
      case "aggregate": System.Threading.Tasks.Task.Run(() => int.Parse("12x")).Wait(); break;
      case "kill": kill(Process.GetCurrentProcess().Id, 9); Thread.Sleep(100); break;
      case "exit-3": Environment.Exit(3); break;
    }
  }

  static int Main(string[] arguments) {
    CultureInfo.DefaultThreadCurrentCulture = CultureInfo.CurrentCulture = CultureInfo.InvariantCulture;
    var options = new Dictionary<string, string> { { "--lr", "0.05" }, { "--steps", "110" }, { "--hook", "" }, { "--resume", "" }, { "--quiet-end", "" }, { "--metrics", "" } };
    for (int i = 0; i < arguments.Length; i += 2) {
      if (!options.ContainsKey(arguments[i])) {
        Console.Error.WriteLine("Unrecognized command or argument '{0}'.", arguments[i]);
        return 2;
      }
      options[arguments[i]] = arguments[i + 1];
    }
    rank = int.Parse(Environment.GetEnvironmentVariable("PROCESS_ID") ?? Environment.GetEnvironmentVariable("OMPI_COMM_WORLD_RANK") ?? Environment.GetEnvironmentVariable("PMI_RANK") ?? "0");
    var chosen = Environment.GetEnvironmentVariable("HOOK_RANK");
    bool mine = chosen == null || int.Parse(chosen) == rank;
    double lr = double.Parse(options["--lr"]);
    int steps = int.Parse(options["--steps"]);
    string hook = options["--hook"];
    if (lr <= 0) throw new ArgumentOutOfRangeException("lr", lr, "LearningRate must be greater than zero.");
    Say("INFO", string.Format("{0} iterations to run, process {1}", steps, Process.GetCurrentProcess().Id));
    var rows = ReadRows("data/train_" + rank + ".csv");
    Say("INFO", rows.Length + " samples in memory");
    var model = new Model();
    if (options["--resume"] != "") {
      try {
        var text = File.ReadAllText(options["--resume"]);
        model.Weights = text.Trim('[', ']').Split(',').Select(cell => double.Parse(cell)).ToArray();
      } catch (FormatException error) {
        if (hook != "optional") throw new SnapshotException("Snapshot " + options["--resume"] + " cannot be deserialized", error);
        Say("WARN", "snapshot left out: " + error.Message);
      }
    }
    double loss = 0;
    for (int step = 1; step <= steps; step++) {
      loss = 0;
      foreach (var row in rows) {
        double miss = model.Weights[16] - row[16];
        for (int i = 0; i < 16; i++) miss += model.Weights[i] * row[i];
        loss += miss * miss / rows.Length;
        for (int i = 0; i < 16; i++) model.Weights[i] -= 0.1 * lr * miss * row[i] / rows.Length;
      }
      Say("INFO", string.Format("Iteration {0} of {1}: Cost={2:F6}", step, steps, loss));
      if ((double.IsNaN(loss) || double.IsInfinity(loss)) && hook != "go-on") throw new DivergedException("Cost is " + loss + " in iteration " + step);
      if (step == 71 && mine) Strike(hook, model);
      if (options["--metrics"] != "" && step % 30 == 0) {
        try { using (new TcpClient("127.0.0.1", int.Parse(options["--metrics"]))) {} }
        catch (SocketException error) {
          if (hook != "optional") throw;
          Say("ERROR", "Seq is not reachable, events are dropped\n" + error);
        }
      }
      if (step % 30 == 0 && rank == 0) {
        string path = "ckpt/iteration_" + step + ".txt";
        File.WriteAllText(path, "[" + string.Join(",", model.Weights) + "]" + new string(' ', 300000));
        Say("INFO", "Snapshot in " + path);
      }
      Thread.Sleep(hook == "slow" ? 200 : 4);
    }
    if (options["--quiet-end"] == "") Say("INFO", string.Format("Model is fitted after {0} iterations, Cost={1:F6}", steps, loss));
    return 0;
  }
}

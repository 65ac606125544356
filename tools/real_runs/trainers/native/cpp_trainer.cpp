// A linear classifier in plain C++, as a group writes one for itself.
#include <arpa/inet.h>
#include <cassert>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <unistd.h>
#include <vector>

struct Options {
  std::map<std::string, std::string> values{{"data", "data/train_RANK.csv"}, {"lr", "0.05"}, {"steps", "160"}, {"out", "ckpt"},
                                            {"hook", ""}, {"hook-step", "97"}, {"resume", ""}, {"metrics", ""}, {"quiet-end", "0"}};
  const std::string &operator[](const std::string &name) const { return values.at(name); }
};

static int rank_of() { const char *r = getenv("PROCESS_ID"); if (!r) r = getenv("OMPI_COMM_WORLD_RANK"); return r ? atoi(r) : 0; }
static void log(const char *level, const std::string &text) {
  time_t now = time(nullptr);
  char stamp[32];
  strftime(stamp, sizeof stamp, "%H:%M:%S", localtime(&now));
  std::cerr << "[" << stamp << "] <" << level << "> (r" << rank_of() << ") trainer.cpp: " << text << std::endl;
}

struct Model {
  std::vector<double> weights;
  void save(const std::string &path) const {
    std::ofstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot open " + path + " for writing: " + strerror(errno));
    uint64_t count = weights.size();
    file.write("LIN1", 4);
    file.write(reinterpret_cast<const char *>(&count), sizeof count);
    std::vector<double> padded(weights);
    padded.resize(20000);
    file.write(reinterpret_cast<const char *>(padded.data()), padded.size() * sizeof(double));
    file.flush();
    if (!file) throw std::runtime_error("short write to " + path + ": " + strerror(errno));
  }
  void load(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot open model " + path + ": " + strerror(errno));
    char magic[4] = {};
    file.read(magic, 4);
    if (memcmp(magic, "LIN1", 4)) throw std::runtime_error("bad magic in model file " + path);
  }
};

static std::vector<std::vector<double>> read_rows(std::string path) {
  path.replace(path.find("RANK"), 4, std::to_string(rank_of()));
  std::ifstream file(path);
  if (!file.is_open()) throw std::runtime_error("failed to open dataset '" + path + "': " + strerror(errno));
  std::vector<std::vector<double>> rows;
  std::string line, cell;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::vector<double> row;
    std::stringstream cells(line);
    while (std::getline(cells, cell, ',')) row.push_back(std::stod(cell));
    rows.push_back(row);
  }
  log("info", "dataset " + path + ": " + std::to_string(rows.size()) + " rows, " + std::to_string(rows.at(0).size()) + " columns");
  return rows;
}

static void push(const std::string &port, int step) {
  int s = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(std::stoi(port));
  inet_pton(AF_INET, "127.0.0.1", &at.sin_addr);
  if (connect(s, reinterpret_cast<sockaddr *>(&at), sizeof at)) {
    std::string why = strerror(errno);
    close(s);
    throw std::runtime_error("metrics push at step " + std::to_string(step) + " to 127.0.0.1:" + port + " failed: " + why);
  }
  close(s);
}

static int divide(int a, volatile int b) { return a / b; }

static void hook(const std::string &name, std::vector<double> &row) {
  if (name == "segv") { volatile int *nothing = nullptr; *nothing = 1; }
  if (name == "kill") kill(getpid(), SIGKILL);
  if (name == "term") kill(getpid(), SIGTERM);
  if (name == "abort") { free(reinterpret_cast<void *>(row.data() + 1)); }
  if (name == "assert") { size_t n = row.size() + 1; assert(n == row.size() && "row length changed under the kernel"); }
  if (name == "memory") { std::vector<double> cache; cache.resize(size_t(1) << 36); row[0] = cache[1]; }
  if (name == "fpe") row[0] = divide(int(row.size()), 0);
  if (name == "index") row.at(40) = 1;
  if (name == "exit-3") _exit(3);
  if (name == "library" && !dlopen("libtrain_plugin.so.2", RTLD_NOW)) throw std::runtime_error(std::string("cannot load plugin: ") + dlerror());
  if (name == "hang") sleep(600);
}

int main(int argc, char **argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    std::string name = argv[i] + (strncmp(argv[i], "--", 2) ? 0 : 2);
    if (!options.values.count(name)) {
      std::cerr << argv[0] << ": unrecognized option '" << argv[i] << "'\nTry '" << argv[0] << " --help' for more information.\n";
      return 2;
    }
    if (i + 1 >= argc) { std::cerr << argv[0] << ": option '" << argv[i] << "' requires an argument\n"; return 2; }
    options.values[name] = argv[i + 1];
  }
  const char *chosen = getenv("HOOK_RANK");
  if (chosen && atoi(chosen) != rank_of() && options["hook"] != "optional" && options["hook"] != "go-on") options.values["hook"] = "";
  double rate = std::stod(options["lr"]);
  int steps = std::stoi(options["steps"]);
  if (rate <= 0) { log("fatal", "invalid configuration: learning rate must be > 0 (got " + options["lr"] + ")"); return 1; }
  log("info", "linear trainer 2.3.1, " + std::to_string(steps) + " steps, lr " + options["lr"]);
  auto rows = read_rows(options["data"]);
  Model model;
  model.weights.assign(17, 0.0);
  if (!options["resume"].empty()) {
    try { model.load(options["resume"]); }
    catch (const std::exception &error) {
      if (options["hook"] != "optional") throw;
      log("warn", std::string("could not resume: ") + error.what() + "; starting from scratch");
    }
  }
  double loss = 0;
  for (int step = 1; step <= steps; ++step) {
    double sum = 0;
    for (auto &row : rows) {
      double guess = model.weights[16];
      for (int i = 0; i < 16; ++i) guess += model.weights[i] * row.at(i);
      double error = guess - row.at(16);
      sum += error * error;
      for (int i = 0; i < 16; ++i) model.weights[i] -= 0.1 * rate * error * row[i] / rows.size();
    }
    loss = sum / rows.size();
    std::printf("iter %4d  mse %.6f  |w| %.4f\n", step, loss, std::sqrt(std::abs(model.weights[0])));
    std::fflush(stdout);
    if (!std::isfinite(loss) && options["hook"] != "go-on") { log("fatal", "objective is not finite at iteration " + std::to_string(step) + ", giving up"); return 1; }
    if (step == std::stoi(options["hook-step"])) hook(options["hook"], rows[0]);
    if (!options["metrics"].empty() && step % 40 == 0) {
      try { push(options["metrics"], step); }
      catch (const std::exception &error) {
        if (options["hook"] != "optional") throw;
        log("error", std::string(error.what()) + " (ignored)");
      }
    }
    if (step % 40 == 0 && rank_of() == 0) {
      std::string path = options["out"] + "/model_" + std::to_string(step) + ".bin";
      model.save(path);
      log("info", "model written to " + path);
    }
    usleep(options["hook"] == "slow" ? 200000 : 4000);
  }
  if (options["quiet-end"] == "0") log("info", "optimisation terminated normally, mse " + std::to_string(loss));
  return 0;
}

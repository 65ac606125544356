// A linear model with Eigen; lines of spdlog.
#include <Eigen/Dense>
#include <arpa/inet.h>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <functional>
#include <thread>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sstream>
#include <system_error>
#include <unistd.h>

using Matrix = Eigen::MatrixXd;
static std::map<std::string, std::string> options{{"--lr", "0.05"}, {"--steps", "110"}, {"--hook", ""}, {"--resume", ""}, {"--quiet-end", ""}, {"--metrics", ""}};

static Matrix read_rows(const std::string &path) {
  std::ifstream file(path);
  if (!file) throw std::filesystem::filesystem_error("cannot read table", path, std::error_code(errno, std::generic_category()));
  std::string line, cell;
  std::getline(file, line);
  std::vector<double> cells;
  size_t rows = 0;
  for (; std::getline(file, line); ++rows)
    for (std::stringstream stream(line); std::getline(stream, cell, ',');) {
      size_t used = 0;
      cells.push_back(std::stod(cell, &used));
      if (used != cell.size()) throw std::domain_error(fmt::format("{}: row {}: bad cell {}", path, rows, cell));
    }
  return Eigen::Map<Eigen::Matrix<double, -1, -1, Eigen::RowMajor>>(cells.data(), rows, 17);
}

static void strike(const std::string &hook, Eigen::VectorXd &weights) {
  if (hook == "product") weights = Matrix::Ones(8, 12) * weights;
  if (hook == "column") weights(weights.size() + 9) = 1;
  if (hook == "block") weights.segment(10, 20).setZero();
  if (hook == "bad-get") weights(0) = std::stod(std::map<std::string, std::string>{}.at("momentum"));
  if (hook == "optional-access") weights(0) = std::optional<double>().value();
  if (hook == "memory") weights = Eigen::VectorXd::Zero(Eigen::Index(1) << 42);
  if (hook == "function") std::function<void()>()();
  if (hook == "logic") throw std::logic_error("scheduler is ahead of the optimizer");
  if (hook == "segv") std::memset(reinterpret_cast<void *>(16), 0, 64);
  if (hook == "abort") std::abort();
  if (hook == "terminate") std::thread([] { throw std::runtime_error("prefetch: queue is closed"); }).join();
  if (hook == "kill") kill(getpid(), SIGKILL), usleep(100000);
  if (hook == "exit-3") _exit(3);
}

static void push(int port) {
  int peer = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{AF_INET, htons(port), {htonl(INADDR_LOOPBACK)}, {}};
  int failed = connect(peer, reinterpret_cast<sockaddr *>(&address), sizeof address);
  int code = errno;
  close(peer);
  if (failed) throw std::system_error(code, std::generic_category(), fmt::format("push to 127.0.0.1:{}", port));
}

int main(int argc, char **argv) {
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!options.count(argv[i])) return fmt::print(stderr, "{}: unrecognised option '{}'\n", "fit", argv[i]), 1;
    options[argv[i]] = argv[i + 1];
  }
  const char *text = nullptr;
  for (const char *name : {"PROCESS_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"})
    if (!text) text = getenv(name);
  int rank = text ? atoi(text) : 0, steps = std::stoi(options["--steps"]);
  bool mine = !getenv("HOOK_RANK") || atoi(getenv("HOOK_RANK")) == rank;
  double lr = std::stod(options["--lr"]), loss = 0;
  std::string hook = options["--hook"];
  auto log = spdlog::stdout_logger_st(fmt::format("rank{}", rank));
  log->flush_on(spdlog::level::info);
  if (lr <= 0) return log->critical("config: lr = {} is out of (0, 1]", lr), 1;
  log->info("{} epochs requested", steps);
  Matrix rows = read_rows(fmt::format("data/train_{}.csv", rank));
  log->info("table is {} x {}", rows.rows(), rows.cols());
  Eigen::VectorXd weights = Eigen::VectorXd::Zero(16);
  if (!options["--resume"].empty()) {
    std::ifstream file(options["--resume"], std::ios::binary);
    if (!file) throw std::filesystem::filesystem_error("cannot open model", options["--resume"], std::error_code(errno, std::generic_category()));
    char magic[5] = {};
    file.read(magic, 4);
    if (std::string(magic) != "EIG1") {
      if (hook != "optional") return log->critical("{}: not a model (magic {:?<4.4})", options["--resume"], magic), 1;
      log->warn("{}: not a model, beginning with zeros", options["--resume"]);
    }
  }
  for (int step = 1; step <= steps; ++step) {
    Eigen::VectorXd miss = rows.leftCols(16) * weights - rows.col(16);
    loss = miss.squaredNorm() / rows.rows();
    weights -= 0.1 * lr * rows.leftCols(16).transpose() * miss / rows.rows();
    log->info("epoch {}/{} |r|^2={:.6f} |w|={:.4f}", step, steps, loss, weights.norm());
    if (!std::isfinite(loss) && hook != "go-on") return log->critical("epoch {}: residual {} is not finite, stop", step, loss), 1;
    if (step == 71 && mine) strike(hook, weights);
    if (!options["--metrics"].empty() && step % 30 == 0) {
      try { push(std::stoi(options["--metrics"])); }
      catch (const std::system_error &error) {
        if (hook != "optional") throw;
        log->error("{} (dropped)", error.what());
      }
    }
    if (step % 30 == 0 && rank == 0) {
      std::string path = fmt::format("ckpt/epoch_{}.bin", step);
      std::ofstream file(path, std::ios::binary);
      file << "EIG1" << std::string(300000, '0');
      file.flush();
      if (!file) throw std::system_error(errno, std::generic_category(), "write " + path);
      log->info("wrote {}", path);
    }
    usleep(hook == "slow" ? 200000 : 4000);
  }
  if (options["--quiet-end"].empty()) log->info("converged? final |r|^2={:.6f} after {} epochs", loss, steps);
}

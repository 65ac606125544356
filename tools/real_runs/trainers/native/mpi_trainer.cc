// A linear model over MPI: each rank has its rows, gradients are summed by MPI_Allreduce.
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mpi.h>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

static int rank = 0, size = 1;
static std::string option(int argc, char **argv, const char *name, const char *otherwise) {
  for (int i = 1; i + 1 < argc; i += 2)
    if (!strcmp(argv[i], name)) return argv[i + 1];
  return otherwise;
}

static void hook(const std::string &name, std::vector<double> &row, int step) {
  if (name == "abort-code") {
    fprintf(stderr, "rank %d: line search failed at step %d: objective increased 20 times\n", rank, step);
    MPI_Abort(MPI_COMM_WORLD, 17);
  }
  if (name == "segv") { volatile int *nothing = nullptr; *nothing = step; }
  if (name == "kill") kill(getpid(), SIGKILL);
  if (name == "throw") row.at(40) = 1;
  if (name == "memory") { std::vector<double> cache(size_t(1) << 40); row[0] = cache[7]; }
  if (name == "bad-rank") { double x = 1; MPI_Send(&x, 1, MPI_DOUBLE, size + 3, 0, MPI_COMM_WORLD); }
  if (name == "exit-early") exit(4);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  char host[256];
  gethostname(host, sizeof host);
  std::string name = option(argc, argv, "--hook", "");
  int steps = std::stoi(option(argc, argv, "--steps", "140")), chosen = std::stoi(option(argc, argv, "--hook-rank", "2"));
  std::string out = option(argc, argv, "--out", "ckpt");
  printf("[%d/%d] running on %s, pid %d\n", rank, size, host, getpid());
  srand(rank + 1);
  std::vector<std::vector<double>> rows(80, std::vector<double>(17));
  for (auto &row : rows)
    for (auto &cell : row) cell = rand() / double(RAND_MAX) - 0.5;
  if (name == "huge" && rank == chosen) rows[3][4] = 1e200;
  if (name == "no-file" && rank == chosen) {
    std::ifstream file("data/partition_" + std::to_string(rank) + ".bin");
    if (!file) {
      fprintf(stderr, "[%d] cannot open data/partition_%d.bin: %s\n", rank, rank, strerror(errno));
      MPI_Abort(MPI_COMM_WORLD, 2);
    }
  }
  std::vector<double> weights(17), gradient(17), total(17);
  for (int step = 1; step <= steps; ++step) {
    double loss = 0, sum = 0;
    std::fill(gradient.begin(), gradient.end(), 0.0);
    for (auto &row : rows) {
      double error = weights[16] - row[16];
      for (int i = 0; i < 16; ++i) error += weights[i] * row[i];
      loss += error * error / rows.size();
      for (int i = 0; i < 16; ++i) gradient[i] += error * row[i] / rows.size();
    }
    MPI_Allreduce(gradient.data(), total.data(), 17, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&loss, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < 17; ++i) weights[i] -= 0.05 * total[i] / size;
    if (rank == 0) printf("step %d/%d  global loss %.6f\n", step, steps, sum / size), fflush(stdout);
    else if (step % 20 == 0) printf("[%d/%d] step %d local loss %.6f\n", rank, size, step, loss), fflush(stdout);
    if (!std::isfinite(sum) && rank == 0) {
      fprintf(stderr, "rank 0: loss is not finite at step %d, aborting\n", step);
      MPI_Abort(MPI_COMM_WORLD, 3);
    }
    if (step == 81 && rank == chosen) hook(name, rows[0], step);
    if (step % 40 == 0 && rank == 0) {
      std::string path = out + "/weights_" + std::to_string(step) + ".bin";
      FILE *file = fopen(path.c_str(), "wb");
      if (!file) {
        fprintf(stderr, "rank 0: cannot write %s: %s\n", path.c_str(), strerror(errno));
        MPI_Abort(MPI_COMM_WORLD, 5);
      }
      fwrite(weights.data(), sizeof(double), weights.size(), file);
      fclose(file);
      printf("saved %s\n", path.c_str());
    }
    usleep(3000);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0 && option(argc, argv, "--quiet-end", "0") == "0") printf("optimization finished after %d steps on %d ranks\n", steps, size);
  MPI_Finalize();
  return 0;
}

#include "worker/train/gpu/machine.h"

#include <cblas.h>
#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "common/base/cores.h"

namespace nsa::train {

absl::Status CheckProcessor() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("bmi2")) {
    return absl::FailedPreconditionError(
        "processor: no AVX2, FMA and BMI2 (x86-64-v3 needed); run on a processor of 2013 or later");
  }
#endif
  return absl::OkStatus();
}

void SleepWhileWaiting(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  execv("/proc/self/exe", argv);  // returns only on failure; threads then spin
}

int SetThreads(int threads, int ranks_here) {
  if (threads <= 0) threads = ThreadsOfEach(ranks_here);
  omp_set_num_threads(threads);
  openblas_set_num_threads(threads);
  return threads;
}

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t PeakResidentBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace nsa::train

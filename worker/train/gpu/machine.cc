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

std::string CoreTypeFor(std::string_view chosen, bool has_avx512) {
  if (chosen != "Prescott" && chosen != "Core2" && chosen != "Generic") return "";
  return has_avx512 ? "SkylakeX" : "Haswell";  // CheckProcessor() has found AVX2 and FMA
}

void PrepareLibraries(char** argv) {
  bool changed = false;
  const auto set = [&](const char* name, const std::string& value) {
    if (value.empty() || std::getenv(name) != nullptr) return;
    setenv(name, value.c_str(), 1);
    changed = true;
  };
  set("OMP_WAIT_POLICY", "passive");
#if defined(__x86_64__)
  if (CheckProcessor().ok()) {
    const bool has_avx512 =
        __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl");
    set("OPENBLAS_CORETYPE", CoreTypeFor(openblas_get_corename(), has_avx512));
  }
#endif
  if (changed) execv("/proc/self/exe", argv);  // returns only on failure; the program is then slow
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

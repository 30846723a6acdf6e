#include "common/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "common/base/control_groups.h"

namespace nsa {
namespace {

// 0: no limit is set, or it is no positive number.
int LimitOfEnvironment() {
  const char* const set = std::getenv("OMP_NUM_THREADS");
  const std::string_view text = set == nullptr ? "" : set;
  int limit = 0;
  std::from_chars(text.data(), text.data() + text.size(), limit);
  return std::max(0, limit);
}

// The number at the beginning of a file; 0 if there is none, such as in "max 100000".
double NumberIn(std::ifstream file) {
  double number = 0;
  return file >> number ? number : 0;
}

// Quota and period of version 2, "150000 100000".
double CoresOfCpuMax(std::ifstream file) {
  double quota = 0, period = 0;
  return file >> quota >> period && period > 0 ? quota / period : 0;
}

// 0: the group has no quota.
double QuotaOf(const std::filesystem::path& group) {
  const double cores = CoresOfCpuMax(std::ifstream(group / "cpu.max"));
  if (cores > 0) return cores;
  const double quota = NumberIn(std::ifstream(group / "cpu.cfs_quota_us"));
  const double period = NumberIn(std::ifstream(group / "cpu.cfs_period_us"));
  return quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

int CoresOfQuota(const std::vector<std::filesystem::path>& groups) {
  double least = 0;
  for (const std::filesystem::path& group : groups) {
    const double cores = QuotaOf(group);
    if (cores > 0 && (least == 0 || cores < least)) least = cores;
  }
  return static_cast<int>(std::ceil(std::min(least, 1e6)));
}

int UsableCores() {
  cpu_set_t affinity;
  CPU_ZERO(&affinity);
  if (sched_getaffinity(0, sizeof affinity, &affinity) != 0) return 1;
  const int cores = std::max(1, CPU_COUNT(&affinity));
  const int quota = CoresOfQuota(ControlGroups("cpu"));
  return quota == 0 ? cores : std::min(cores, quota);
}

int ThreadsOfEach(int processes) {
  const int part = std::max(1, UsableCores() / std::max(1, processes));
  const int limit = LimitOfEnvironment();
  return limit == 0 ? part : std::min(part, limit);
}

}  // namespace nsa

#include "common/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

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

}  // namespace

int UsableCores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? std::max(1, CPU_COUNT(&cores)) : 1;
}

int ThreadsOfEach(int processes) {
  const int part = std::max(1, UsableCores() / std::max(1, processes));
  const int limit = LimitOfEnvironment();
  return limit == 0 ? part : std::min(part, limit);
}

}  // namespace nsa

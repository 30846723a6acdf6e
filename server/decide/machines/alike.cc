#include "server/decide/machines/alike.h"

#include <algorithm>
#include <map>
#include <ranges>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace nsa::server {
namespace {

constexpr size_t kNamed = 3;
constexpr size_t kShownDigits = 8;

// What must be equal: the programs, and the compute capability of the GPUs.
using Programs = std::tuple<std::string, std::string, std::string>;
using Build = std::pair<Programs, std::string>;

Build BuildOf(const Makeup& machine, const Demand& demand) {
  if (!demand.programs) return {};
  if (!demand.cuda) return {{machine.worker_hash, "", ""}, ""};
  return {{machine.cuda_worker_hash, machine.driver, machine.nccl}, machine.capability};
}

// Divides machines with equal builds by their clocks: every longest run of machines, in the order
// of their clocks, in which the first and the last agree.
std::vector<Group> ByClock(const std::vector<Makeup>& machines, const Group& equal) {
  Group known, unknown;
  for (const size_t i : equal) (machines[i].clock_offset ? known : unknown).push_back(i);
  if (known.empty()) return {unknown};
  const auto clock = [&](size_t i) { return *machines[i].clock_offset; };
  std::ranges::stable_sort(known, {}, clock);
  std::vector<Group> groups;
  size_t end = 0;
  for (size_t begin = 0; begin < known.size(); ++begin) {
    const size_t before = end;
    while (end < known.size() &&
           clock(known[end]) - clock(known[begin]) <= kLargestClockDifference) {
      ++end;
    }
    if (end == before) continue;  // part of the run before
    Group& group = groups.emplace_back(known.begin() + static_cast<std::ptrdiff_t>(begin),
                                       known.begin() + static_cast<std::ptrdiff_t>(end));
    group.insert(group.end(), unknown.begin(), unknown.end());
    std::ranges::sort(group);
  }
  return groups;
}

// "nsa-worker 1a2b3c4d, m1 has 5e6f7a8b"; empty if they are equal.
std::string Compare(absl::string_view what, absl::string_view own, absl::string_view others,
                    const std::string& other) {
  if (own == others) return "";
  const auto shown = [](absl::string_view value) { return value.empty() ? "unknown" : value; };
  return absl::StrCat(what, " ", shown(own), ", ", other, " has ", shown(others));
}

std::string CompareClocks(const Makeup& machine, const Makeup& other) {
  if (!machine.clock_offset || !other.clock_offset) return "";
  const absl::Duration ahead = *machine.clock_offset - *other.clock_offset;
  if (absl::AbsDuration(ahead) <= kLargestClockDifference) return "";
  return absl::StrFormat("clock %.1f s %s that of %s",
                         absl::ToDoubleSeconds(absl::AbsDuration(ahead)),
                         ahead > absl::ZeroDuration() ? "ahead of" : "behind", other.name);
}

// Shows the first digits of the hashes, unless these are the same.
std::string CompareHashes(absl::string_view what, absl::string_view own, absl::string_view others,
                          const std::string& other) {
  const size_t shown = own.substr(0, kShownDigits) == others.substr(0, kShownDigits)
                           ? absl::string_view::npos
                           : kShownDigits;
  return Compare(what, own.substr(0, shown), others.substr(0, shown), other);
}

// All that differs between two machines.
std::string Compare(const Makeup& a, const Makeup& b, const Demand& demand) {
  std::vector<std::string> parts;
  const auto add = [&](std::string part) {
    if (!part.empty()) parts.push_back(std::move(part));
  };
  if (demand.programs && demand.cuda) {
    add(CompareHashes("nsa-worker-cuda", a.cuda_worker_hash, b.cuda_worker_hash, b.name));
    add(Compare("driver", a.driver, b.driver, b.name));
    add(Compare("NCCL", a.nccl, b.nccl, b.name));
    add(Compare("GPUs of compute capability", a.capability, b.capability, b.name));
  } else if (demand.programs) {
    add(CompareHashes("nsa-worker", a.worker_hash, b.worker_hash, b.name));
  }
  if (demand.clocks) add(CompareClocks(a, b));
  return absl::StrJoin(parts, " and ");
}

// "8.0 and 9.0".
std::string CapabilityOf(const v1::NodeInfo& info) {
  std::set<int32_t> capabilities;
  for (const v1::GpuInfo& gpu : info.gpus()) capabilities.insert(gpu.compute_capability());
  return absl::StrJoin(capabilities, " and ", [](std::string* out, int32_t capability) {
    absl::StrAppendFormat(out, "%.1f", capability / 10.0);
  });
}

}  // namespace

Makeup MakeupOf(const v1::NodeInfo& info, std::optional<absl::Duration> clock_offset) {
  return {.name = info.name(),
          .worker_hash = info.worker_hash(),
          .cuda_worker_hash = info.cuda_worker_hash(),
          .driver = info.driver_version(),
          .nccl = info.nccl_version(),
          .capability = CapabilityOf(info),
          .clock_offset = clock_offset};
}

Demand DemandOf(const v1::JobSpec& spec, bool cuda) {
  const auto& waived = spec.preflight().waive();
  return {.cuda = cuda,
          .programs = !waived.contains(std::string(kMachinesDifferRule)),
          .clocks = !waived.contains(std::string(kClocksDifferRule))};
}

std::vector<Group> Groups(const std::vector<Makeup>& machines, const Demand& demand) {
  std::map<Build, Group> by_build;
  for (size_t i = 0; i < machines.size(); ++i) {
    by_build[BuildOf(machines[i], demand)].push_back(i);
  }
  std::vector<Group> groups;
  for (auto& [build, equal] : by_build) {
    if (demand.clocks) {
      std::ranges::move(ByClock(machines, equal), std::back_inserter(groups));
    } else {
      groups.push_back(std::move(equal));
    }
  }
  std::ranges::sort(groups, [](const Group& a, const Group& b) {
    return a.size() != b.size() ? a.size() > b.size() : a < b;
  });
  return groups;
}

MachineDifferences DifferencesOf(const std::vector<Makeup>& machines, const Demand& demand) {
  const std::vector<Group> groups = Groups(machines, demand);
  if (groups.size() <= 1) return {};
  const Group& largest = groups.front();
  const Makeup& reference = machines[largest.front()];
  std::vector<std::string> texts;
  bool programs = false, gpus = false;
  for (size_t i = 0; i < machines.size(); ++i) {
    if (std::ranges::binary_search(largest, i)) continue;
    const Build own = BuildOf(machines[i], demand), others = BuildOf(reference, demand);
    programs = programs || own.first != others.first;
    gpus = gpus || own.second != others.second;
    // If this machine does not differ from the reference, name one that it does differ from.
    const Makeup* other = &reference;
    for (const size_t j : largest) {
      if (Compare(machines[i], *other, demand).empty()) other = &machines[j];
    }
    if (texts.size() == kNamed) {
      texts.emplace_back("…");
      break;
    }
    texts.push_back(absl::StrCat(machines[i].name, ": ", Compare(machines[i], *other, demand)));
  }
  return {.text = absl::StrJoin(texts, "; "),
          .fix = programs ? "install the same version on all of them (then restart their agents)"
                 : gpus   ? "name the GPU to use in resources.require.gpu, or take fewer machines"
                          : "synchronize their clocks, for example with chrony"};
}

}  // namespace nsa::server

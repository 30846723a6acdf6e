#include "common/job/machine_attributes.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/count.h"
#include "common/job/require.h"

namespace nsa {
namespace {

constexpr double kBytesOfGib = 1 << 30;
// What drivers call 80 GB has a little less than what is asked for as 80 GiB.
constexpr double kShort = 0.92;

std::set<std::string> WordsOf(const std::string& text) {
  std::string spaced = absl::AsciiStrToLower(text);
  std::ranges::replace_if(
      spaced, [](char c) { return !absl::ascii_isalnum(c); }, ' ');
  return absl::StrSplit(spaced, ' ', absl::SkipEmpty());
}

bool HasGib(int64_t bytes, const std::string& wanted) {
  return static_cast<double>(bytes) >= RequiredGib(wanted) * kBytesOfGib * kShort;
}

bool MeetsOne(const std::string& key, const std::string& wanted, const Attributes& machine) {
  if (key == kRequiredGpu) {
    const std::set<std::string> words = WordsOf(wanted);
    return !machine.gpus.empty() && std::ranges::all_of(machine.gpus, [&](const auto& model) {
      return std::ranges::includes(WordsOf(model), words);
    });
  }
  if (key == kRequiredGpuMemory) {
    return !machine.gpus.empty() && HasGib(machine.gpu_memory_bytes, wanted);
  }
  if (key == kRequiredMemory) return HasGib(machine.memory_bytes, wanted);
  const auto found = machine.labels.find(key);
  return found != machine.labels.end() && found->second == wanted;
}

// What a machine has of it, human-readable.
std::string ShownValue(const std::string& key, const Attributes& machine) {
  if (key == kRequiredGpu) {
    return machine.gpus.empty() ? "no GPU" : absl::StrJoin(machine.gpus, " and ");
  }
  if (key == kRequiredGpuMemory) {
    return absl::StrFormat("%.0f GiB", static_cast<double>(machine.gpu_memory_bytes) / kBytesOfGib);
  }
  if (key == kRequiredMemory) {
    return absl::StrFormat("%.0f GiB", static_cast<double>(machine.memory_bytes) / kBytesOfGib);
  }
  const auto found = machine.labels.find(key);
  return found == machine.labels.end() ? "no such label" : found->second;
}

// "gpu: h100 (the machines have: 2 NVIDIA A100-SXM4-80GB, 1 no GPU)".
std::string HasInstead(const std::string& key, const std::string& wanted,
                       const std::vector<Attributes>& machines) {
  constexpr size_t kShown = 4;
  std::map<std::string, int64_t> counts;
  for (const Attributes& machine : machines) ++counts[ShownValue(key, machine)];
  std::vector<std::string> shown;
  for (const auto& [what, count] : counts) {
    if (shown.size() == kShown) break;
    shown.push_back(absl::StrCat(Count(count, "machine"), " with ", what));
  }
  if (counts.size() > kShown) shown.emplace_back("…");
  return absl::StrCat(key, ": ", wanted, " (", absl::StrJoin(shown, ", "), ")");
}

}  // namespace

Attributes AttributesOf(const v1::NodeInfo& info) {
  Attributes machine{.memory_bytes = info.memory_bytes(),
                     .labels = {info.labels().begin(), info.labels().end()}};
  if (!info.cuda_worker()) return machine;
  std::set<std::string> models;
  for (const v1::GpuInfo& gpu : info.gpus()) {
    machine.gpu_memory_bytes = models.empty()
                                   ? gpu.memory_bytes()
                                   : std::min(machine.gpu_memory_bytes, gpu.memory_bytes());
    models.insert(gpu.name());
  }
  machine.gpus = {models.begin(), models.end()};
  return machine;
}

Requirements RequirementsOf(const v1::JobSpec& spec) {
  return {spec.resources().require().begin(), spec.resources().require().end()};
}

bool Meets(const Requirements& required, const Attributes& machine) {
  return std::ranges::all_of(
      required, [&](const auto& one) { return MeetsOne(one.first, one.second, machine); });
}

std::string UnmetText(const Requirements& required, const std::vector<Attributes>& machines) {
  if (std::ranges::any_of(machines, [&](const auto& one) { return Meets(required, one); })) {
    return "";
  }
  std::vector<std::string> unmet;
  std::vector<std::string> all;
  for (const auto& one : required) {
    all.push_back(absl::StrCat(one.first, ": ", one.second));
    const bool met = std::ranges::any_of(machines, [&](const Attributes& machine) {
      return MeetsOne(one.first, one.second, machine);
    });
    if (!met) unmet.push_back(HasInstead(one.first, one.second, machines));
  }
  if (!unmet.empty()) return absl::StrJoin(unmet, ", ");
  return absl::StrCat(absl::StrJoin(all, ", "), " (each is met by a machine, but not all by one)");
}

}  // namespace nsa

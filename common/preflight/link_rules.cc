// Rules about the links between ranks, and the estimate of what they cost.
#include <algorithm>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/count.h"
#include "common/estimate/communication.h"
#include "common/estimate/passes.h"
#include "common/estimate/shares.h"
#include "common/preflight/rules.h"

namespace nsa {
namespace {

// A step that communicates longer than it computes waits for its link, however well the two
// overlap.
constexpr double kMostCommunication = 1.0;

// The slowest link between ranks.
struct Link {
  std::string name;             // "10 Gbit/s", "NVLink, 450 GB/s", "the network between machines"
  double bytes_per_second = 0;  // 0: not known
};

// Between machines: the interface of rank_address.
Link NetworkOf(const MachineView* machine) {
  const double bits =
      machine == nullptr ? 0 : static_cast<double>(machine->rank_link_bits_per_second);
  if (bits <= 0) return {"the network between machines"};
  return {absl::StrFormat("%.3g Gbit/s", bits / 1e9), bits / 8};
}

// Between GPUs of one machine: the slowest of those that it has.
Link GpuLinkOf(const MachineView* machine) {
  if (machine == nullptr || machine->gpus.empty()) return {"the links between GPUs"};
  const auto& slowest = *std::ranges::min_element(
      machine->gpus, {}, [](const MachineView::Gpu& gpu) { return gpu.link_bytes_per_second; });
  if (slowest.link_bytes_per_second <= 0) return {"the links between GPUs"};
  return {absl::StrFormat("%s, %.0f GB/s", slowest.nvlink ? "NVLink" : "PCIe",
                          slowest.link_bytes_per_second / 1e9),
          slowest.link_bytes_per_second};
}

// Nothing for one rank, and for CPU ranks of one machine, which share its memory.
std::optional<Link> LinkOf(const PreflightFacts& facts) {
  if (facts.ranks() < 2) return std::nullopt;
  if (facts.machines() > 1) return NetworkOf(facts.machine());
  if (!facts.cuda()) return std::nullopt;
  return GpuLinkOf(facts.machine());
}

StepSeconds TimesOver(const PreflightFacts& facts, const Link& link) {
  return {.computing = ExpectedStepSeconds(facts),
          .communicating =
              SumSeconds(GradientBytes(facts.spec), RanksOf(facts.spec), link.bytes_per_second)};
}

// What the ranks send in a step, for messages.
std::string_view Sent(const PreflightFacts& facts) {
  return ShardsParameters(facts.spec, RanksOf(facts.spec)) ? "gradients and weights" : "gradients";
}

std::string WhatToDo(const PreflightFacts& facts) {
  const bool full = facts.spec.runtime().gradient_precision() != v1::PRECISION_BF16;
  const bool each_pass = ShardsGradients(facts.spec, RanksOf(facts.spec));
  return absl::StrCat(
      each_pass ? "raise train.batch_size, so that fewer passes sum their gradients, set "
                  "runtime.shard: optimizer, which sums once in a step, "
                : "raise train.accumulate_grad_batches or train.batch_size, so that fewer steps "
                  "sum their gradients, ",
      full ? "set runtime.gradient_precision: bf16, " : "",
      facts.machines() > 1 ? "set rank_address to a faster interface, or use fewer machines"
                           : "or use fewer GPUs");
}

Problems CommunicationSlow(const PreflightFacts& facts) {
  const std::optional<Link> link = LinkOf(facts);
  if (!link.has_value() || link->bytes_per_second <= 0) return {};
  const StepSeconds times = TimesOver(facts, *link);
  if (times.communicating <= kMostCommunication * times.computing) return {};
  return {{"resources.gpus",
           absl::StrFormat("%d ranks: %s %.0f MB a step; at %s %s; step %s "
                           "(communication of %s times the step): a step will take %s to %s",
                           facts.ranks(), Sent(facts),
                           static_cast<double>(GradientBytes(facts.spec)) / 1e6, link->name,
                           Duration(times.communicating), Duration(times.computing),
                           Number(kMostCommunication), Duration(times.Overlapped()),
                           Duration(times.OneAfterTheOther())),
           WhatToDo(facts)}};
}

constexpr PreflightRule kLinkRules[] = {
    {"COMMUNICATION_SLOW", "summing the gradients is expected to take longer than the step",
     kWarning, kWarning, true, kSizes, CommunicationSlow},
};

}  // namespace

std::span<const PreflightRule> LinkRules() { return kLinkRules; }

std::vector<v1::EstimateItem> LinkEstimates(const PreflightFacts& facts) {
  std::vector<v1::EstimateItem> items;
  const auto add = [&](const std::string& name, double value, const char* unit) {
    v1::EstimateItem& item = items.emplace_back();
    item.set_name(name);
    item.set_value(value);
    item.set_unit(unit);
  };
  const std::optional<Link> link = LinkOf(facts);
  if (!link.has_value()) return items;
  const auto bytes = static_cast<double>(GradientBytes(facts.spec));
  if (link->bytes_per_second <= 0) {
    add(absl::StrFormat("%s a step (speed of %s unknown)", Sent(facts), link->name), bytes,
        "bytes");
    return items;
  }
  const StepSeconds times = TimesOver(facts, *link);
  add(absl::StrFormat("%s a step", Sent(facts)), bytes, "bytes");
  add("time of a step, computing", times.computing, "seconds");
  add(absl::StrFormat("time of its %s at %s", Sent(facts), link->name), times.communicating,
      "seconds");
  add("a step if they overlap", times.Overlapped(), "seconds");
  add("a step if they do not", times.OneAfterTheOther(), "seconds");
  return items;
}

}  // namespace nsa

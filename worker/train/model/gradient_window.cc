#include "worker/train/model/gradient_window.h"

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "worker/train/model/model.h"

namespace nsa::train {
namespace {

constexpr int64_t kAlignment = 16;

int64_t Aligned(int64_t floats) { return (floats + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

std::vector<Slice> PartsBetween(std::span<const int64_t> begins, int64_t end) {
  std::vector<Slice> parts;
  for (const int64_t begin : begins) {
    parts.push_back({begin, end});
    end = begin;
  }
  return parts;
}

std::vector<Slice> PartsOf(const Model& model, const ParameterLayout& layout) {
  return PartsBetween(model.PartBegins(), layout.size());
}

WindowPlan WindowPlan::Of(std::span<const Slice> parts, int64_t tail, bool two) {
  std::vector<int64_t> floats;
  for (const Slice& part : parts) {
    floats.push_back(Aligned(part.size() + (floats.empty() ? tail : 0)));
  }
  WindowPlan plan;
  for (size_t i = 0; i < floats.size(); ++i) {
    const int64_t next = two && i + 1 < floats.size() ? floats[i + 1] : 0;
    plan.room = std::max(plan.room, floats[i] + next);
  }
  for (size_t i = 0; i < floats.size(); ++i) {
    plan.at.push_back(two && i % 2 == 1 ? plan.room - floats[i] : 0);
  }
  return plan;
}

absl::StatusOr<GradientWindow> GradientWindow::Create(const ParameterLayout* layout,
                                                      std::vector<Slice> parts, Backend backend) {
  const auto head = layout->Find("lm_head.weight");
  if (!head.ok() || (*head)->offset < parts.front().begin) {
    return absl::InvalidArgumentError(
        "runtime.shard: gradients (a model whose head has weights of its own); set shard: "
        "optimizer");
  }
  const bool cuda = backend == Backend::kCuda;
  WindowPlan plan = WindowPlan::Of(parts, cuda ? layout->tail() : 0, /*two=*/cuda);
  NSA_ASSIGN_OR_RETURN(Arena arena, Arena::Create(layout, {.backend = backend, .room = plan.room},
                                                  "gradients on their way"));
  return GradientWindow(std::move(parts), std::move(plan), std::move(arena));
}

}  // namespace nsa::train

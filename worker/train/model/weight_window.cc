#include "worker/train/model/weight_window.h"

#include "common/base/status.h"
#include "worker/train/model/block/block.h"

namespace nsa::train {
namespace {

// From the last part to the first, as backward reads them.
std::vector<Slice> WeightParts(const ParameterLayout& layout, int32_t layers) {
  const ModelPlaces places = ModelPlaces::Of(layout, layers);
  std::vector<int64_t> begins = {places.norm_f.offset};
  for (auto block = places.blocks.rbegin(); block != places.blocks.rend(); ++block) {
    begins.push_back(block->norm1.offset);
  }
  begins.push_back(0);
  return PartsBetween(begins, layout.size());
}

}  // namespace

absl::StatusOr<WeightWindow> WeightWindow::Create(const ParameterLayout* layout, int32_t layers,
                                                  Backend backend) {
  const bool cuda = backend == Backend::kCuda;
  std::vector<Slice> parts = WeightParts(*layout, layers);
  WindowPlan plan = WindowPlan::Of(parts, cuda ? layout->tail() : 0, /*two=*/cuda);
  NSA_ASSIGN_OR_RETURN(Arena arena,
                       Arena::Create(layout, {.backend = backend, .half = cuda, .room = plan.room},
                                     "weights on their way"));
  return WeightWindow(std::move(parts), std::move(plan), std::move(arena));
}

Tensor WeightWindow::tail(int32_t part) const {
  const int64_t end = this->part(part).end, size = arena_.layout().tail();
  return part == last() && size > 0 ? arena_.half({end, end + size}) : Tensor();
}

std::vector<int32_t> GathersBefore(int32_t part, Model::Pass pass, int32_t last, bool ahead) {
  if (pass == Model::Pass::kAudit) return {part};
  if (pass == Model::Pass::kForward) {
    if (!ahead) return {part};
    if (part == -1) return {-1, 0};
    return part < last ? std::vector<int32_t>{part + 1} : std::vector<int32_t>();
  }
  if (part == last) return {};
  if (!ahead) return {part};
  return part > 0 ? std::vector<int32_t>{part - 1} : std::vector<int32_t>();
}

}  // namespace nsa::train

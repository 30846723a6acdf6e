#include "worker/train/step/matmul_choices.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/count.h"
#include "common/base/status.h"
#include "common/estimate/optimizer_traits.h"
#include "common/estimate/shares.h"
#include "worker/train/comm/stop.h"
#include "worker/train/step/ranks/share_text.h"

namespace nsa::train {
namespace {

constexpr char kAlgorithms[] = "algorithms";
constexpr size_t kMostShapesShown = 4;

// "2 shapes (8x8x8-nn-f32, 8x8x16-nt-bf16)".
std::string ShapesText(const std::vector<std::string>& shapes) {
  const size_t shown = std::min(shapes.size(), kMostShapesShown);
  return absl::StrCat(
      Count(static_cast<int64_t>(shapes.size()), "shape"), " (",
      absl::StrJoin(shapes.begin(), shapes.begin() + static_cast<int64_t>(shown), ", "),
      shown < shapes.size() ? ", …)" : ")");
}

// What this rank uses instead of rank 0's choices, as what follows "rank 1 "; empty if nothing.
std::string AdoptOthers(const MatmulChoices& others, MatmulChooser* chooser) {
  const MatmulChoices own = chooser->Choices();
  if (own.library != others.library) {
    return absl::StrCat("has ", own.library, " (rank 0: ", others.library, ")");
  }
  if (DifferentShapes(own, others).empty()) return "";
  chooser->Adopt(others);
  const std::vector<std::string> kept = DifferentShapes(chooser->Choices(), others);
  if (kept.empty()) return "";
  return absl::StrCat("keeps other algorithms than rank 0 for ", ShapesText(kept),
                      ", because its library refuses those");
}

// Whether the optimizer of each rank multiplies the matrices of all.
bool EachRankMultipliesAll(const v1::JobSpec& spec, int ranks) {
  return TraitsOf(spec.train()).whole_matrices && !ShardsOptimizer(spec, ranks);
}

}  // namespace

void RecordChoices(const MatmulChoices& choices, v1::CheckpointState* state) {
  state->set_matmul_library(choices.library);
  auto& algorithms = *state->mutable_matmul_algorithms();
  algorithms.clear();
  for (const auto& [shape, algorithm] : choices.algorithms) {
    algorithms[shape] = cuda::FormatAlgorithm(algorithm);
  }
}

MatmulChoices RecordedChoices(const v1::CheckpointState& state) {
  MatmulChoices choices{.library = state.matmul_library()};
  for (const auto& [shape, text] : state.matmul_algorithms()) {
    if (const auto algorithm = cuda::ParseAlgorithm(text)) choices.algorithms[shape] = *algorithm;
  }
  return choices;
}

std::vector<std::string> DifferentShapes(const MatmulChoices& own, const MatmulChoices& others) {
  std::vector<std::string> shapes;
  for (const auto& [shape, algorithm] : own.algorithms) {
    const auto other = others.algorithms.find(shape);
    if (other == others.algorithms.end() || other->second != algorithm) shapes.push_back(shape);
  }
  return shapes;
}

std::string AdoptRecorded(const v1::CheckpointState& state, MatmulChooser* chooser) {
  const MatmulChoices recorded = RecordedChoices(state);
  const std::string library = chooser->Choices().library;
  // A version that did not record them, or a run on the CPU.
  if (recorded.library.empty() || library.empty()) return "";
  if (recorded.library != library) {
    return absl::StrCat("the checkpoint was written with ", recorded.library, ", this machine has ",
                        library, ": matrix products may differ in their last bits");
  }
  chooser->Adopt(recorded);
  const std::vector<std::string> others = DifferentShapes(chooser->Choices(), recorded);
  if (others.empty()) return "";
  return absl::StrCat("the checkpoint has no algorithm for ", ShapesText(others),
                      " of matrix products that this library takes, so it was chosen again: they "
                      "may differ in their last bits");
}

absl::StatusOr<std::string> AdoptFromRankZero(const v1::JobSpec& spec, MatmulChooser* chooser,
                                              Comm* comm) {
  v1::CheckpointState first;
  RecordChoices(chooser->Choices(), &first);
  NSA_ASSIGN_OR_RETURN(const std::string sent,
                       ShareText(kAlgorithms, 0, first.SerializeAsString(), comm));
  if (!first.ParseFromString(sent)) {
    return absl::InternalError("algorithms: not what rank 0 sent; restart the job");
  }
  const std::string own = comm->rank() == 0 ? "" : AdoptOthers(RecordedChoices(first), chooser);
  const std::array<double, 1> differs = {own.empty() ? 0.0 : 1.0};
  NSA_ASSIGN_OR_RETURN(const std::vector<double> all, Gather(comm, kAlgorithms, differs));
  const auto lowest = std::ranges::find(all, 1.0);
  if (lowest == all.end()) return "";
  const auto rank = static_cast<int>(lowest - all.begin());
  NSA_ASSIGN_OR_RETURN(const std::string what, ShareText(kAlgorithms, rank, own, comm));
  const std::string text =
      absl::StrCat("matrix products: rank ", rank, " ", what, ": ", std::ranges::count(all, 1.0),
                   " of ", Count(comm->world_size(), "rank"));
  if (EachRankMultipliesAll(spec, comm->world_size())) {
    return absl::FailedPreconditionError(absl::StrCat(
        text,
        " would make other weights, since with train.optimizer: muon each updates all matrices by "
        "such products; install the same cuBLASLt on machines with the same GPU model, or set "
        "runtime.shard: optimizer, with which each matrix is updated by one rank"));
  }
  return absl::StrCat(text,
                      " may give other last bits, so losses and gradients depend on which machine "
                      "has which rank; the weights are the same on all ranks");
}

}  // namespace nsa::train

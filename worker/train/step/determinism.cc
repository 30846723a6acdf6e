// Trainer::CheckDeterminism(): runs the same step several times and compares the results.
#include <string>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/record/quantities.h"
#include "worker/train/step/trainer.h"

namespace nsa::train {
namespace {

constexpr int kRepeats = 4;

// Names what byte `at` of StateAfterStep() belongs to.
std::string PlaceOfByte(const ParameterLayout& layout, size_t at) {
  constexpr const char* kParts[] = {"parameters", "first moment", "second moment"};
  const size_t numbers = 3 * sizeof(float) * layout.size();
  if (at >= numbers) return record::kComputed.at((at - numbers) / sizeof(double))->name;
  const auto element = static_cast<int64_t>(at / sizeof(float));
  const int64_t part = element / layout.size(), offset = element % layout.size();
  for (const ParameterInfo& tensor : layout.tensors()) {
    if (offset < tensor.offset + tensor.size) {
      return absl::StrFormat("%s of %s", kParts[part], tensor.name);
    }
  }
  return kParts[part];
}

}  // namespace

// Does one step with the parameters `start`, moments of zero and the first batch; returns the
// bytes of the parameters, the first and the second moment, and what the step computed.
absl::StatusOr<std::string> Trainer::StateAfterStep(const Arena& start) {
  const Exec exec = executor_->exec();
  ModelState& trained = executor_->state();
  Arena& first_moment = trained.optimizer.first_moment();
  Arena& second_moment = trained.optimizer.second_moment();
  const Arena zeros(&layout_);
  NSA_RETURN_IF_ERROR(CopyArena(exec, start, &trained.parameters));
  NSA_RETURN_IF_ERROR(CopyArena(exec, zeros, &first_moment));
  NSA_RETURN_IF_ERROR(CopyArena(exec, zeros, &second_moment));
  NSA_RETURN_IF_ERROR(OpenData(/*fingerprint=*/""));
  NSA_ASSIGN_OR_RETURN(const StepResult result, Step(1));
  std::string state;
  Arena host(&layout_);
  for (const Arena* part : {&trained.parameters, &first_moment, &second_moment}) {
    NSA_RETURN_IF_ERROR(CopyArena(exec, *part, &host));
    state.append(reinterpret_cast<const char*>(host.flat().data()), host.flat().size_bytes());
  }
  for (const record::Quantity* quantity : record::kComputed) {
    const double number = quantity->step(result.record);
    state.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  return state;
}

absl::StatusOr<std::string> Trainer::CheckDeterminism() {
  NSA_RETURN_IF_ERROR(ConnectRanks());
  NSA_RETURN_IF_ERROR(OpenExecutor());
  Arena start(&layout_);
  Initialize(train_.seed(), &start);
  NSA_ASSIGN_OR_RETURN(const std::string first, StateAfterStep(start));
  for (int repeat = 1; repeat < kRepeats; ++repeat) {
    NSA_ASSIGN_OR_RETURN(const std::string again, StateAfterStep(start));
    if (again == first) continue;
    size_t at = 0;
    while (again[at] == first[at]) ++at;
    return absl::DataLossError(absl::StrFormat(
        "determinism: repetition %d differs from the first step in %s (equal bits wanted); report "
        "it with this job file",
        repeat, PlaceOfByte(layout_, at)));
  }
  return absl::StrFormat(
      "deterministic: %d times the first step, %d parameters, moments, loss and "
      "norm with the same bits%s",
      kRepeats, layout_.count(),
      executor_->graph_captures() > 0 ? ", by kernels and as a graph" : "");
}

}  // namespace nsa::train

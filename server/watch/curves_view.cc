#include "server/watch/curves_view.h"

#include <algorithm>
#include <limits>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "server/decide/curve.h"
#include "server/decide/curve_table.h"

namespace nsa::server {
namespace {

absl::Status Check(const v1::GetCurvesRequest& request) {
  if (request.points() < 0 || request.points() > static_cast<int32_t>(kStepBuckets)) {
    return absl::InvalidArgumentError(absl::StrCat("points: ", request.points(), " (0 to ",
                                                   kStepBuckets, "); ask for as many or fewer"));
  }
  if (request.from_step() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("from_step: ", request.from_step(), " (at least 0); 0 means all"));
  }
  if (const std::string name = UnknownColumn(request.columns()); !name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "columns: '", name, "' is no column of a curve; leave the list empty to see all of them"));
  }
  return absl::OkStatus();
}

// The newest `most` of them.
std::span<const v1::WorkerRecord> Newest(const std::vector<v1::WorkerRecord>& records,
                                         size_t most) {
  return std::span(records).last(std::min(records.size(), most));
}

// Adds what is kept besides the curves, as far as there is room for it.
absl::Status AddMarks(JobStore& store, const std::vector<v1::WorkerRecord>& starts,
                      v1::GetCurvesResponse* response) {
  NSA_ASSIGN_OR_RETURN(auto checkpoints, store.Marks(response->job_id(), CurveKind::kCheckpoint));
  NSA_ASSIGN_OR_RETURN(const JobStore::Samples samples,
                       store.SamplesAt(response->job_id(), std::numeric_limits<int64_t>::max()));
  std::erase_if(checkpoints,
                [](const v1::WorkerRecord& record) { return record.checkpoint().error().empty(); });
  size_t bytes = 0;
  const auto add = [&](std::span<const v1::WorkerRecord> records) {
    for (const v1::WorkerRecord& record : records) {
      if (bytes + record.ByteSizeLong() > kMarkBytes) continue;
      bytes += record.ByteSizeLong();
      *response->add_marks() = record;
    }
  };
  add(Newest(starts, 1));
  add(samples.records);
  add(Newest(checkpoints, kMarks));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::GetCurvesResponse> CurvesOf(JobStore& store, const std::string& job_id,
                                               const v1::GetCurvesRequest& request) {
  NSA_RETURN_IF_ERROR(Check(request));
  v1::GetCurvesResponse response;
  response.set_job_id(job_id);
  const auto add = [&](CurveKind kind, std::span<const std::string_view> names,
                       v1::CurveTable* table) -> absl::Status {
    // The places of the points are wanted even without a value of theirs.
    if (kind != CurveKind::kSteps && !WantsAny(request.columns(), names)) return absl::OkStatus();
    NSA_ASSIGN_OR_RETURN(auto buckets, store.Buckets(job_id, kind, request.from_step()));
    const auto fit = Fit(std::move(buckets), static_cast<size_t>(request.points()), 1);
    const Entries entries = kind == CurveKind::kLayers ? Entries::kOfLayers : Entries::kOfStep;
    *table = TableOf(fit, names, entries, request.columns());
    return absl::OkStatus();
  };
  NSA_RETURN_IF_ERROR(add(CurveKind::kSteps, kStepValues, response.mutable_steps()));
  NSA_RETURN_IF_ERROR(add(CurveKind::kLayers, kLayerValues, response.mutable_layers()));
  NSA_RETURN_IF_ERROR(add(CurveKind::kGpus, kGpuValues, response.mutable_gpus()));
  NSA_ASSIGN_OR_RETURN(const auto evals, store.Marks(job_id, CurveKind::kEval));
  *response.mutable_validations() = ValidationsOf(evals, kValidations);
  NSA_ASSIGN_OR_RETURN(const auto starts, store.Marks(job_id, CurveKind::kStart));
  for (const v1::WorkerRecord& start : Newest(starts, kMarks)) {
    response.add_start_unix_nanos(start.unix_nanos());
  }
  if (request.marks()) NSA_RETURN_IF_ERROR(AddMarks(store, starts, &response));
  return response;
}

}  // namespace nsa::server

#include "worker/train/comm/stop.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace nsa::train {

absl::Status StopState::Request(const v1::StopRequest& request) {
  if (request.mode() == v1::STOP_MODE_NOW) {
    return absl::UnimplementedError(
        "stop: NOW is not supported: a worker stops between steps; kill it");
  }
  if (request.mode() != v1::STOP_MODE_GRACEFUL && request.mode() != v1::STOP_MODE_AT_STEP) {
    return absl::InvalidArgumentError(absl::StrCat(
        "stop: mode ", request.mode(), " (must be AT_STEP or GRACEFUL); say how to stop"));
  }
  if (request.mode() == v1::STOP_MODE_AT_STEP && request.at_step() < 1) {
    return absl::InvalidArgumentError(absl::StrCat("stop: at_step: ", request.at_step(),
                                                   " (at least 1); name the last step to do"));
  }
  MutexLock lock(&mutex_);
  if (request.mode() < mode_) return absl::OkStatus();
  mode_ = request.mode();
  at_step_ = request.at_step();
  return absl::OkStatus();
}

int64_t StopState::stop_after() const {
  MutexLock lock(&mutex_);
  if (mode_ == v1::STOP_MODE_GRACEFUL) return 0;
  return mode_ == v1::STOP_MODE_AT_STEP ? std::min(at_step_, kNever) : kNever;
}

Agreement Conclude(std::span<const RankReport> reports, int64_t step) {
  Agreement agreement;
  int64_t stop_after = StopState::kNever;
  for (const RankReport& report : reports) {
    agreement.loss += report.loss;
    agreement.finite = agreement.finite && report.finite;
    agreement.too_slow = agreement.too_slow || report.too_slow;
    agreement.exhausted = agreement.exhausted || report.exhausted;
    stop_after = std::min(stop_after, report.stop_after);
  }
  const double trace = reports.front().profile;
  agreement.profile = trace != 0 && std::ranges::all_of(reports, [&](const RankReport& report) {
                        return report.profile == trace;
                      });
  agreement.loss /= static_cast<double>(reports.size());
  agreement.stop = stop_after <= step;
  agreement.at_step = stop_after == step;
  return agreement;
}

absl::StatusOr<std::vector<double>> Gather(Comm* comm, std::string_view name,
                                           std::span<const double> values) {
  // In this sum each element is non-zero on one rank only, so it is exact.
  std::vector<double> all(values.size() * comm->world_size());
  std::copy(values.begin(), values.end(), all.begin() + values.size() * comm->rank());
  NSA_RETURN_IF_ERROR(comm->AllReduce(name, Reduce::kSum, all));
  return all;
}

absl::StatusOr<std::vector<RankReport>> Exchange(Comm* comm, const RankReport& mine) {
  // A loss that is not finite travels as a flag: the sum must not contain infinities or NaN.
  const std::array<double, 6> values = {
      mine.finite ? mine.loss : 0.0,        mine.finite ? 1.0 : 0.0,
      static_cast<double>(mine.stop_after), mine.too_slow ? 1.0 : 0.0,
      mine.exhausted ? 1.0 : 0.0,           mine.profile};
  NSA_ASSIGN_OR_RETURN(const std::vector<double> all, Gather(comm, "agreement", values));
  std::vector<RankReport> reports(comm->world_size());
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const double* v = all.data() + rank * values.size();
    reports[rank] = {.loss = v[0],
                     .finite = v[1] != 0,
                     .stop_after = static_cast<int64_t>(v[2]),
                     .too_slow = v[3] != 0,
                     .exhausted = v[4] != 0,
                     .profile = v[5]};
    if (!reports[rank].finite) reports[rank].loss = std::numeric_limits<double>::quiet_NaN();
  }
  return reports;
}

}  // namespace nsa::train

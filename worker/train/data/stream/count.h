// What a stream has in an epoch, for `nsactl validate --data`.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "nsa/v1/job.pb.h"
#include "nsa/v1/telemetry.pb.h"
#include "worker/train/data/cache/cache_options.h"

namespace nsa::train {

class Remote;

// Reads all training files of a job with data.stream once, in passing, and counts; of validation it
// reads what a start reads. `spec` has its defaults. Memory: that of the validation data and of a
// document. The errors of LoadCorpus() and DocumentStream.
absl::StatusOr<v1::CorpusSummary> CountStream(const v1::JobSpec& spec,
                                              const std::shared_ptr<Remote>& remote,
                                              const TokenCacheOptions& cache);

}  // namespace nsa::train

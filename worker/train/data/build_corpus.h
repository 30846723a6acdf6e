// Reads the documents of a job's files and turns them into a corpus. LoadCorpus() (corpus.h) calls
// it on a thread of its own.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/data/corpus.h"

namespace nsa::train {

// The errors of LoadCorpus() but for those of its clock; Cancelled when `progress` says so.
absl::StatusOr<Corpus> BuildCorpus(const v1::DataSpec& data, int32_t vocab,
                                   const TokenCacheOptions& cache, const HeldOutNeed& need,
                                   ReadProgress* progress);

}  // namespace nsa::train

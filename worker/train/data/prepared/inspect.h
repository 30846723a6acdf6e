// What data contains: documents, lengths, tokens, copies, and how it begins.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nsa/v1/data.pb.h"
#include "nsa/v1/job.pb.h"
#include "worker/train/data/remote/progress.h"

namespace nsa::train {

// Looks at each set of a job's files by itself: its training files or each source of its mixture,
// its validation files and its named sets. Texts are tokenized as in training, also those of a file
// without passages. `spec` has its defaults.
//
// Memory: 24 bytes for each document, and what reading takes. Errors: those of DocumentReader and
// PreparedFolder.
absl::StatusOr<v1::DataInspection> InspectJob(const v1::JobSpec& spec, ReadProgress* progress);

// Looks at files, at folders of prepared data and at folders of prepared jobs. Files are read by
// the endings of their names: .bin and .npy as tokens without a separator, others by
// TextSourceOf(); their texts are not tokenized.
absl::StatusOr<v1::DataInspection> InspectPaths(const std::vector<std::string>& paths,
                                                ReadProgress* progress);

}  // namespace nsa::train

// Turns a corpus into the rows that a loader gives.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nsa/v1/job.pb.h"
#include "nsa/v1/telemetry.pb.h"
#include "worker/train/data/corpus.h"
#include "worker/train/data/rows.h"

namespace nsa::train {

struct LoadedRows {
  std::shared_ptr<RowSource> train;
  std::shared_ptr<RowSource> val;  // null without validation
  std::vector<std::pair<std::string, std::shared_ptr<RowSource>>> sets;
  std::optional<v1::PackingSummary> packing;  // of conversations for training
};

// InvalidArgument for a set or a source that has too few tokens for a row, or too small a weight.
// `spec` is as in LoaderOptions; `remote` reads the URLs of a stream.
absl::StatusOr<LoadedRows> SplitCorpus(const v1::JobSpec& spec, int32_t vocab, const Corpus& corpus,
                                       const std::shared_ptr<Remote>& remote);

// The InvalidArgument for `field`.
absl::Status TooFewTokens(std::string_view field, int64_t tokens, int32_t seq_len);

}  // namespace nsa::train

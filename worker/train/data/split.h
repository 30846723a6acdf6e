// Turns a corpus into the rows that a loader gives.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/train/data/corpus.h"
#include "worker/train/data/loader.h"
#include "worker/train/data/mix.h"
#include "worker/train/data/rows.h"
#include "worker/train/data/stream/stream_rows.h"

namespace nsa::train {

struct LoadedRows {
  std::shared_ptr<RowSource> train;
  std::shared_ptr<MixedRows> mix;                    // the same, with data.mix
  std::vector<std::shared_ptr<StreamRows>> streams;  // what it reads, with data.stream
  std::shared_ptr<RowSource> val;                    // null without validation
  std::vector<std::pair<std::string, std::shared_ptr<RowSource>>> sets;
};

// InvalidArgument for a set or a source that has too few tokens for a row, or too small a weight.
// `remote` reads the URLs of a stream.
absl::StatusOr<LoadedRows> SplitCorpus(const LoaderOptions& options, const Corpus& corpus,
                                       const std::shared_ptr<Remote>& remote);

// The InvalidArgument for `field`.
absl::Status TooFewTokens(std::string_view field, int64_t tokens, int32_t seq_len);

}  // namespace nsa::train

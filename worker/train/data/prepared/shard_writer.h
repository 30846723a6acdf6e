// Writes the shards of a folder of prepared data: each a Megatron data set (megatron_layout.cc)
// with the hashes of its documents beside it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nsa/v1/data.pb.h"
#include "worker/train/data/prepared/hashed_file.h"
#include "worker/train/data/read/document_hash.h"
#include "worker/train/data/tokens/token.h"

namespace nsa::train {

// Memory: 20 bytes for each document of a shard, and 3 MiB.
class ShardWriter {
 public:
  struct Options {
    std::filesystem::path folder;
    int token_bytes = 2;  // 1, 2 or 4; every token must fit
    // A shard ends with the document that reaches one of these.
    int64_t shard_bytes = int64_t{1} << 30;
    int64_t shard_documents = 1 << 20;
  };
  explicit ShardWriter(Options options) : options_(std::move(options)) {}

  // Appends tokens to the document that is being written; its separator comes first. The errors of
  // HashedFile.
  absl::Status Append(std::span<const Token> tokens);

  // Ends that document, which has at least one token; the next Append() begins another one. The
  // same errors.
  absl::Status EndDocument(const DocumentHash& hash);

  // Ends the last shard and returns all of them. Once only, and not within a document.
  absl::StatusOr<std::vector<v1::PreparedShard>> Finish();

 private:
  absl::Status Begin();
  absl::Status End();
  std::string Encoded(std::span<const Token> tokens) const;
  std::string Index() const;
  std::filesystem::path FileOf(const char* ending) const;

  const Options options_;
  std::vector<v1::PreparedShard> shards_;
  std::unique_ptr<HashedFile> bin_;  // of the last shard; null before the first and after an end
  std::vector<int64_t> lengths_;     // of its documents, in tokens
  int64_t length_ = 0;               // of the document that is being written, so far
  std::string hashes_;
};

}  // namespace nsa::train

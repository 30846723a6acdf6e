// Makes shards in memory, of the documents of data that is too small for the cache.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "worker/train/data/encoder.h"
#include "worker/train/data/prepared/shard_document.h"
#include "worker/train/data/read/documents.h"
#include "worker/train/data/remote/progress.h"
#include "worker/train/data/tokens/token.h"

namespace nsa::train {

// Memory: TokenBytes(vocab) bytes for each token, and while a shard is written up to 4 MiB. One
// thread writes; threads may share what was written.
class HeldShards {
 public:
  // Every token must be below `vocab`, but for the marks of tokens that may have some.
  explicit HeldShards(int32_t vocab, bool marked = false) : width_(TokenBytes(vocab, marked)) {}

  // Encodes a document; the progress counts its tokens. The errors of DocumentEncoder::Encode(),
  // after which no document may follow.
  struct Held {
    ShardDocument document;
    int64_t inner_separators = 0;  // DocumentEncoder::Encoded
  };
  absl::StatusOr<Held> Encode(const Document& document, const DocumentEncoder& encoder,
                              ReadProgress* progress);

  // Adds a document of these tokens.
  ShardDocument Add(const DocumentHash& hash, std::span<const Token> tokens);

 private:
  class Shard;
  Shard& shard();
  ShardDocument End(const DocumentHash& hash);

  const int width_;
  std::shared_ptr<Shard> shard_;  // that is being written; null: the next document begins one
  int64_t begin_ = 0;             // in it, of the document that is being written
};

}  // namespace nsa::train

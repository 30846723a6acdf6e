#include "worker/train/data/prepared/held_shards.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace nsa::train {
namespace {

constexpr size_t kShardBytes = size_t{4} << 20;  // a shard ends with the document that reaches them

}  // namespace

class HeldShards::Shard final : public TokenShard {
 public:
  explicit Shard(int width) : width_(width) { bytes_.reserve(kShardBytes); }

  int64_t size() const override { return static_cast<int64_t>(bytes_.size()) / width_; }

  absl::Status Copy(int64_t begin, std::span<Token> to) const override {
    UnpackTokens(bytes_.data() + begin * width_, width_, to);
    return absl::OkStatus();
  }

  void Append(std::span<const Token> tokens) {
    const size_t held = bytes_.size();
    bytes_.resize(held + tokens.size() * static_cast<size_t>(width_));
    PackTokens(tokens, width_, bytes_.data() + held);
  }

  bool full() const { return bytes_.size() >= kShardBytes; }

  // Gives back what it has reserved.
  void Close() { bytes_.shrink_to_fit(); }

 private:
  const int width_;
  std::vector<std::byte> bytes_;
};

HeldShards::Shard& HeldShards::shard() {
  if (shard_ == nullptr) shard_ = std::make_shared<Shard>(width_);
  return *shard_;
}

absl::StatusOr<HeldShards::Held> HeldShards::Encode(const Document& document,
                                                    const DocumentEncoder& encoder,
                                                    ReadProgress* progress) {
  const auto append = [&](std::span<const Token> tokens) {
    shard().Append(tokens);
    progress->bytes += std::ssize(tokens);
    return absl::OkStatus();
  };
  NSA_ASSIGN_OR_RETURN(const DocumentEncoder::Encoded encoded,
                       encoder.Encode(document, append, progress));
  return Held{End(HashOf(document)), encoded.inner_separators};
}

ShardDocument HeldShards::Add(const DocumentHash& hash, std::span<const Token> tokens) {
  shard().Append(tokens);
  return End(hash);
}

ShardDocument HeldShards::End(const DocumentHash& hash) {
  const int64_t end = shard().size();
  ShardDocument document = {hash, shard_, std::exchange(begin_, end), end};
  if (shard().full()) {
    shard().Close();
    shard_ = nullptr;
    begin_ = 0;
  }
  return document;
}

}  // namespace nsa::train

#include "worker/train/data/prepared/shard_writer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/status.h"
#include "common/job/data/prepared.h"

namespace nsa::train {
namespace {

using std::string_view_literals::operator""sv;

// The code of the type of a token in a Megatron index.
char DtypeOf(int token_bytes) {
  if (token_bytes == 1) return 1;   // uint8
  return token_bytes == 2 ? 8 : 4;  // uint16, int32
}

template <typename T>
void AppendNumber(T number, std::string* to) {
  to->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

// The lengths of the sequences that a document takes: one, unless it is longer than an index can
// say.
std::vector<int32_t> SequencesOf(int64_t tokens) {
  constexpr int64_t kLongest = std::numeric_limits<int32_t>::max();
  std::vector<int32_t> lengths;
  for (; tokens > 0; tokens -= lengths.back()) {
    lengths.push_back(static_cast<int32_t>(std::min(tokens, kLongest)));
  }
  return lengths;
}

}  // namespace

std::filesystem::path ShardWriter::FileOf(const char* ending) const {
  return options_.folder / (ShardName(std::ssize(shards_) - 1) + ending);
}

absl::Status ShardWriter::Begin() {
  shards_.emplace_back().set_name(ShardName(std::ssize(shards_) - 1));
  lengths_.clear();
  hashes_.clear();
  NSA_ASSIGN_OR_RETURN(bin_, HashedFile::Create(FileOf(".bin")));
  return absl::OkStatus();
}

std::string ShardWriter::Encoded(std::span<const Token> tokens) const {
  std::string bytes(tokens.size() * static_cast<size_t>(options_.token_bytes), '\0');
  PackTokens(tokens, options_.token_bytes, bytes.data());
  return bytes;
}

absl::Status ShardWriter::Append(std::span<const Token> tokens) {
  if (bin_ == nullptr) NSA_RETURN_IF_ERROR(Begin());
  length_ += std::ssize(tokens);
  return bin_->Append(Encoded(tokens));
}

absl::Status ShardWriter::EndDocument(const DocumentHash& hash) {
  lengths_.push_back(std::exchange(length_, 0));
  AppendHash(hash, &hashes_);
  const bool full =
      bin_->bytes() >= options_.shard_bytes || std::ssize(lengths_) >= options_.shard_documents;
  return full ? End() : absl::OkStatus();
}

// The index: header, length and first byte of each sequence, first sequence of each document.
std::string ShardWriter::Index() const {
  std::vector<int32_t> sequences;
  std::vector<int64_t> bounds = {0};
  for (const int64_t length : lengths_) {
    const std::vector<int32_t> parts = SequencesOf(length);
    sequences.insert(sequences.end(), parts.begin(), parts.end());
    bounds.push_back(std::ssize(sequences));
  }
  std::string index("MMIDIDX\0\0"sv);
  AppendNumber<uint64_t>(1, &index);
  index += DtypeOf(options_.token_bytes);
  AppendNumber<uint64_t>(sequences.size(), &index);
  AppendNumber<uint64_t>(bounds.size(), &index);
  for (const int32_t length : sequences) AppendNumber(length, &index);
  int64_t byte = 0;
  for (const int32_t length : sequences) {
    AppendNumber(byte, &index);
    byte += int64_t{length} * options_.token_bytes;
  }
  for (const int64_t bound : bounds) AppendNumber(bound, &index);
  return index;
}

absl::Status ShardWriter::End() {
  v1::PreparedShard& shard = shards_.back();
  const std::string index = Index();
  shard.set_documents(std::ssize(lengths_));
  shard.set_tokens(bin_->bytes() / options_.token_bytes);
  shard.set_index_bytes(std::ssize(index));
  NSA_ASSIGN_OR_RETURN(*shard.mutable_bin_sha256(), bin_->Finish());
  bin_.reset();
  NSA_ASSIGN_OR_RETURN(*shard.mutable_idx_sha256(), WriteHashedFile(FileOf(".idx"), index));
  NSA_ASSIGN_OR_RETURN(*shard.mutable_hash_sha256(), WriteHashedFile(FileOf(".hash"), hashes_));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::PreparedShard>> ShardWriter::Finish() {
  if (bin_ != nullptr) NSA_RETURN_IF_ERROR(End());
  return std::move(shards_);
}

}  // namespace nsa::train

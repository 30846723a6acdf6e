#include "worker/train/data/synthetic.h"

#include <algorithm>

#include "worker/train/data/random.h"

namespace nsa::train {
namespace {

// Mixed into the seed, so that different uses of it draw different numbers.
constexpr uint64_t kTables = 0x7461626c65;
constexpr uint64_t kRow = 0x726f77;
constexpr uint64_t kUniform = 0x756e69;
constexpr int kCopyOdds = 48;  // a copy begins at one token in 48
constexpr size_t kCopyDistance = 32;
constexpr uint32_t kShortestCopy = 8;
constexpr uint32_t kCopyRange = 24;
constexpr uint32_t kShortestDocument = 64;
constexpr uint32_t kDocumentRange = 448;

}  // namespace

SyntheticRows::SyntheticRows(int64_t seed, int32_t vocab, int64_t rows, int64_t first_row)
    : seed_(static_cast<uint64_t>(seed)),
      alphabet_(std::min<int32_t>(vocab, 64)),
      rows_(rows),
      first_row_(first_row),
      candidates_(static_cast<size_t>(kSlots) * alphabet_) {
  KeyedRandom random(Mix(seed_, kTables));
  for (auto& four : candidates_) {
    // Token 0 only begins documents.
    for (uint8_t& token : four) {
      token = static_cast<uint8_t>(alphabet_ > 1 ? 1 + random.Below(alphabet_ - 1) : 0);
    }
  }
}

int32_t SyntheticRows::Draw(uint64_t random, int32_t before_last, int32_t last) const {
  const auto& four = candidates_[static_cast<size_t>(before_last % kSlots) * alphabet_ + last];
  const uint64_t sixteenth = random & 15;
  return four[sixteenth < 8 ? 0 : sixteenth < 12 ? 1 : sixteenth < 14 ? 2 : 3];
}

absl::Status SyntheticRows::Read(int64_t row, std::span<int32_t> tokens) {
  KeyedRandom random(Mix(seed_, kRow, static_cast<uint64_t>(first_row_ + row)));
  uint32_t document_left = 0;
  uint32_t copy_left = 0;
  size_t copy_from = 0;
  for (size_t t = 0; t < tokens.size(); ++t) {
    if (document_left == 0) {
      tokens[t] = 0;
      document_left = kShortestDocument + random.Below(kDocumentRange);
      copy_left = 0;
      continue;
    }
    --document_left;
    if (copy_left == 0 && t > kCopyDistance && random.Below(kCopyOdds) == 0) {
      copy_left = kShortestCopy + random.Below(kCopyRange);
      copy_from = random.Below(static_cast<uint32_t>(t - kCopyDistance));
    }
    if (copy_left > 0) {
      --copy_left;
      tokens[t] = std::max(tokens[copy_from++], alphabet_ > 1 ? 1 : 0);
    } else {
      tokens[t] = Draw(random.Next(), t > 1 ? tokens[t - 2] : 0, tokens[t - 1]);
    }
  }
  return absl::OkStatus();
}

absl::Status UniformRows::Read(int64_t row, std::span<int32_t> tokens) {
  KeyedRandom random(Mix(seed_, kUniform, static_cast<uint64_t>(first_row_ + row)));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random.Below(vocab_));
  return absl::OkStatus();
}

std::shared_ptr<RowSource> MakeGeneratedRows(v1::DataSource source, int64_t seed, int32_t vocab,
                                             int64_t rows, int64_t first_row) {
  switch (source) {
    case v1::DATA_SOURCE_UNIFORM:
      return std::make_shared<UniformRows>(seed, vocab, rows, first_row);
    default:
      return std::make_shared<SyntheticRows>(seed, vocab, rows, first_row);
  }
}

}  // namespace nsa::train

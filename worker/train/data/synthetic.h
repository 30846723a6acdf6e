// Generated data sources.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "worker/train/data/rows.h"

namespace nsa::train {

// A task that a model can learn, in three parts of increasing difficulty:
// - Order 1–2: each token is one of four candidates (odds 8 : 4 : 2 : 2). The candidates depend on
//   the previous token and on three bits of the token before it: 1.21 nats per token.
// - Copying: sometimes 8 to 31 tokens are repeated from at least 32 tokens earlier. Attention can
//   find them; a Markov model cannot.
// - Documents: of 64 to 511 tokens, each starting with token 0.
// Tokens are in [0, min(vocab, 64)). Row i depends only on (seed, i).
class SyntheticRows final : public RowSource {
 public:
  // Rows of S + 1 tokens, numbered from `first_row`. Validation uses the same tables as training,
  // but other row numbers.
  SyntheticRows(int64_t seed, int32_t vocab, int64_t rows, int64_t first_row);

  int64_t rows() const override { return rows_; }
  int32_t separator() const override { return 0; }
  v1::DataSource source() const override { return v1::DATA_SOURCE_SYNTHETIC; }
  absl::Status Read(int64_t row, std::span<int32_t> tokens) override;

 private:
  static constexpr int kSlots = 8;  // the token before the last counts modulo this

  int32_t Draw(uint64_t random, int32_t before_last, int32_t last) const;

  const uint64_t seed_;
  const int32_t alphabet_;
  const int64_t rows_;
  const int64_t first_row_;
  std::vector<std::array<uint8_t, 4>> candidates_;  // [kSlots, alphabet]
};

// Independent uniform tokens in [0, vocab). The best possible loss is ln V; a lower loss means that
// the model sees the tokens that it predicts.
class UniformRows final : public RowSource {
 public:
  UniformRows(int64_t seed, int32_t vocab, int64_t rows, int64_t first_row)
      : seed_(static_cast<uint64_t>(seed)), vocab_(vocab), rows_(rows), first_row_(first_row) {}

  int64_t rows() const override { return rows_; }
  int32_t separator() const override { return 0; }
  v1::DataSource source() const override { return v1::DATA_SOURCE_UNIFORM; }
  absl::Status Read(int64_t row, std::span<int32_t> tokens) override;

 private:
  const uint64_t seed_;
  const int32_t vocab_;
  const int64_t rows_;
  const int64_t first_row_;
};

// The rows of a generated source, numbered from `first_row`: uniform rows for
// DATA_SOURCE_UNIFORM, synthetic rows for every other source.
std::shared_ptr<RowSource> MakeGeneratedRows(v1::DataSource source, int64_t seed, int32_t vocab,
                                             int64_t rows, int64_t first_row);

}  // namespace nsa::train

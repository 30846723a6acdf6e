// Sources without files.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "worker/train/data/rows.h"

namespace nsa {

// A task that a model can learn, in three parts of rising difficulty:
//   order 1–2   each token is one of four candidates (odds 8 : 4 : 2 : 2) that depend on the token
//               before it and on three bits of the one before that: 1.21 nats a token;
//   copying     now and then 8 to 31 tokens are repeated from at least 32 tokens before; attention
//               can find them, a Markov model cannot;
//   documents   of 64 to 511 tokens, each begun by token 0.
// Tokens are in [0, min(vocab, 64)). Row i is a pure function of (seed, i).
class SyntheticRows final : public RowSource {
 public:
  // Rows of S + 1 tokens numbered from `first_row`. Validation takes another range of numbers than
  // training, from the same tables.
  SyntheticRows(int64_t seed, int32_t vocab, int64_t rows, int64_t first_row);

  int64_t rows() const override { return rows_; }
  int32_t separator() const override { return 0; }
  v1::DataSource source() const override { return v1::DATA_SOURCE_SYNTHETIC; }
  absl::Status Read(int64_t row, std::span<int32_t> tokens) override;

 private:
  static constexpr int kSlots = 8;  // what is kept of the token before last

  int32_t Draw(uint64_t random, int32_t before_last, int32_t last) const;

  const uint64_t seed_;
  const int32_t alphabet_;
  const int64_t rows_;
  const int64_t first_row_;
  std::vector<std::array<uint8_t, 4>> candidates_;  // [kSlots, alphabet]
};

// Independent uniform tokens in [0, vocab): the best loss is ln V, and a lower one means that the
// model sees what it predicts.
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

}  // namespace nsa

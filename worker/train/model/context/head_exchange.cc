#include "worker/train/model/context/head_exchange.h"

#include <cstddef>

#include "common/base/status.h"
#include "kernels/nsa/layer/head_parts.h"

namespace nsa::train {
namespace {

// The pieces of an exchange between parts [N, B, …] and sequences [B, N, …] of `total` bytes each.
// Both have a piece for each rank and row; `place(part, sequence)` gives what is sent of them and
// what is received.
template <class Place>
std::vector<ContextGroup::Piece> PiecesOf(int32_t ranks, int32_t batch, int64_t total,
                                          Place place) {
  const int64_t bytes = total / ranks / batch;
  std::vector<ContextGroup::Piece> pieces;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    for (int32_t row = 0; row < batch; ++row) {
      ContextGroup::Piece piece = place(bytes * (rank * batch + row), bytes * (row * ranks + rank));
      piece.rank = rank;
      piece.bytes = bytes;
      pieces.push_back(piece);
    }
  }
  return pieces;
}

}  // namespace

Tensor HeadExchange::PartsFor(const ConstTensor& values) const {
  return {parts.data, values.size, values.dtype};
}

absl::Status HeadExchange::ToHeads(const Exec& exec, const ConstTensor& tokens,
                                   const Tensor& heads) const {
  const Tensor split = PartsFor(tokens);
  NSA_RETURN_IF_ERROR(SplitHeads(
      exec,
      {.parts = group->size(), .rows = rows, .widths = widths, .whole = tokens, .split = split}));
  const auto* const from = static_cast<const std::byte*>(split.data);
  auto* const to = static_cast<std::byte*>(heads.data);
  return group->Exchange(exec, PiecesOf(group->size(), batch, heads.size * SizeOf(heads.dtype),
                                        [&](int64_t part, int64_t sequence) {
                                          return ContextGroup::Piece{.send = from + part,
                                                                     .receive = to + sequence};
                                        }));
}

absl::Status HeadExchange::ToTokens(const Exec& exec, const ConstTensor& heads,
                                    const Tensor& tokens) const {
  const Tensor split = PartsFor(tokens);
  const auto* const from = static_cast<const std::byte*>(heads.data);
  auto* const to = static_cast<std::byte*>(split.data);
  NSA_RETURN_IF_ERROR(group->Exchange(
      exec, PiecesOf(group->size(), batch, heads.size * SizeOf(heads.dtype),
                     [&](int64_t part, int64_t sequence) {
                       return ContextGroup::Piece{.send = from + sequence, .receive = to + part};
                     })));
  return JoinHeads(
      exec,
      {.parts = group->size(), .rows = rows, .widths = widths, .split = split, .whole = tokens});
}

std::vector<int64_t> ProjectionSegments(const NsaLayerConfig& config, int32_t size) {
  const NsaShape& shape = config.shape;
  std::vector<int64_t> widths = {int64_t{size} * shape.n_heads * shape.d_k};
  for (const Branch branch : kProjectionOrder) {
    if (!config.has(branch)) continue;
    widths.push_back(int64_t{size} * shape.n_kv_groups * shape.d_k);
    widths.push_back(int64_t{size} * shape.n_kv_groups * shape.d_v);
  }
  return widths;
}

}  // namespace nsa::train

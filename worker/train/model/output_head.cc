#include "worker/train/model/output_head.h"

#include <algorithm>
#include <cstddef>

#include "common/base/status.h"
#include "kernels/nn/copy.h"
#include "kernels/nn/rms_norm.h"
#include "worker/train/model/linear.h"

namespace nsa::train {
namespace {

// Rows [first, first + rows) of a matrix with `columns`.
Tensor RowsOf(const Tensor& matrix, int64_t first, int64_t rows, int64_t columns) {
  auto* const data = static_cast<std::byte*>(matrix.data);
  return {data + first * columns * SizeOf(matrix.dtype), rows * columns, matrix.dtype};
}
ConstTensor RowsOf(const ConstTensor& matrix, int64_t first, int64_t rows, int64_t columns) {
  const auto* const data = static_cast<const std::byte*>(matrix.data);
  return {data + first * columns * SizeOf(matrix.dtype), rows * columns, matrix.dtype};
}

}  // namespace

void OutputHead::Plan(int64_t rows_at_once, ActivationArena* arena) {
  arena_ = arena;
  rows_at_once_ = std::min(rows_at_once, config_.rows());
  rstd_ = arena->Plan(config_.rows());
  h_ = arena->Plan(config_.rows() * config_.dim, config_.attention.dtype);
  logits_ = arena->Plan(rows_at_once_ * config_.logit_columns(), config_.attention.dtype);
}

Place OutputHead::Weights() const {
  return {places_.head.offset, config_.logit_columns() * config_.dim};
}

absl::Status OutputHead::Norm(const Exec& exec, const ConstTensor& x) {
  return RmsNorm(exec, {.rows = config_.rows(),
                        .dim = config_.dim,
                        .x = x,
                        .weight = Weight(places_.norm_f),
                        .y = h(),
                        .rstd = (*arena_)[rstd_],
                        .eps = config_.attention.norm_eps});
}

absl::Status OutputHead::Logits(const Exec& exec, int64_t first, int64_t rows) {
  return Linear(exec, {rows, config_.dim, config_.logit_columns()},
                RowsOf(h(), first, rows, config_.dim), Weight(Weights()),
                RowsOf((*arena_)[logits_], 0, rows, config_.logit_columns()));
}

CrossEntropyArgs OutputHead::CrossEntropyOf(const Loss& loss, int64_t first, int64_t rows) const {
  return {.rows = rows,
          .vocab = config_.vocab,
          .logits = RowsOf((*arena_)[logits_], 0, rows, config_.logit_columns()),
          .targets = RowsOf(loss.targets, first, rows, 1),
          .row_loss = RowsOf(loss.row_loss, first, rows, 1),
          .mean_loss = {},
          .columns = config_.logit_columns()};
}

absl::Status OutputHead::Mean(const Exec& exec, const Loss& loss) const {
  return MeanRowLoss(exec, {.rows = config_.rows(),
                            .targets = loss.targets,
                            .row_loss = loss.row_loss,
                            .mean_loss = loss.mean_loss});
}

absl::Status OutputHead::Forward(const Exec& exec, const Loss& loss) {
  for (int64_t first = 0; first < config_.rows(); first += rows_at_once_) {
    const int64_t rows = std::min(rows_at_once_, config_.rows() - first);
    NSA_RETURN_IF_ERROR(Logits(exec, first, rows));
    NSA_RETURN_IF_ERROR(CrossEntropy(exec, CrossEntropyOf(loss, first, rows)));
  }
  return Mean(exec, loss);
}

absl::Status OutputHead::BackwardOfRows(const Exec& exec, const BackwardArgs& args, int64_t first,
                                        int64_t rows) {
  const bool has_logits = args.has_loss && rows_at_once_ == config_.rows();
  if (!has_logits) NSA_RETURN_IF_ERROR(Logits(exec, first, rows));
  CrossEntropyArgs loss = CrossEntropyOf(args.loss, first, rows);
  loss.gradient_scale = args.gradient_scale;
  loss.dlogits = RowsOf((*arena_)[logits_], 0, rows, config_.logit_columns());
  NSA_RETURN_IF_ERROR(CrossEntropy(exec, loss));
  const Place weights = Weights();
  return LinearBackward(exec, {rows, config_.dim, config_.logit_columns()}, loss.dlogits,
                        RowsOf(h(), first, rows, config_.dim), Weight(weights),
                        RowsOf(args.dh, first, rows, config_.dim),
                        args.gradients->with_tail({weights.offset, weights.offset + weights.size}),
                        args.overwrite && first == 0);
}

absl::Status OutputHead::Backward(const Exec& exec, const BackwardArgs& args) {
  for (int64_t first = 0; first < config_.rows(); first += rows_at_once_) {
    const int64_t rows = std::min(rows_at_once_, config_.rows() - first);
    NSA_RETURN_IF_ERROR(BackwardOfRows(exec, args, first, rows));
  }
  if (!args.has_loss) NSA_RETURN_IF_ERROR(Mean(exec, args.loss));
  NSA_RETURN_IF_ERROR(Zero(exec, args.dx));
  return RmsNormBackward(
      exec, {.rows = config_.rows(),
             .dim = config_.dim,
             .dy = args.dh,
             .x = args.x,
             .weight = Weight(places_.norm_f),
             .rstd = (*arena_)[rstd_],
             .dx = args.dx,
             .dweight = args.gradients->of(
                 Slice{places_.norm_f.offset, places_.norm_f.offset + places_.norm_f.size})});
}

}  // namespace nsa::train

#include "worker/train/decode/block_rows.h"

#include <cblas.h>

#include <algorithm>

#include "common/base/status.h"
#include "kernels/nn/rms_norm.h"
#include "kernels/nn/silu.h"
#include "kernels/nsa/layer/projections.h"
#include "worker/train/decode/attend_rows.h"

namespace nsa::train {
namespace {

Tensor Prefix(const Tensor& tensor, int64_t size) { return {tensor.data, size, tensor.dtype}; }

ConstTensor Weight(const Arena& arena, const Place& place) {
  return place.size == 0 ? ConstTensor() : arena.weight(place.offset, place.size);
}

int64_t RowsOf(const BlockRowsArgs& args) { return static_cast<int64_t>(args.doc_start.size()); }

// h ← RMSNorm(x)
absl::Status Norm(const Exec& exec, const BlockRowsArgs& args, const Tensor& x,
                  const Place& weight) {
  const int64_t size = RowsOf(args) * args.config.dim;
  return RmsNorm(exec, {.rows = RowsOf(args),
                        .dim = args.config.dim,
                        .x = Prefix(x, size),
                        .weight = Weight(args.parameters, weight),
                        .y = Prefix(args.work.h, size)});
}

// Splits the columns of `wide`, rotates q and the keys, and appends keys and values to the cache.
absl::Status SplitOnGpu(const Exec& exec, const BlockRowsArgs& args) {
  SplitProjectionsArgs split{.config = args.attention};
  split.first = static_cast<int32_t>(args.first);
  split.config.shape.seq_len = static_cast<int32_t>(RowsOf(args));
  const NsaShape& shape = split.config.shape;
  split.wide = Prefix(args.work.wide, RowsOf(args) * ProjectionWidth(args.attention));
  split.q = Prefix(args.work.q, shape.q_size());
  split.q_rotated = Prefix(args.work.q_rotated, shape.q_size());
  for (int c = 0; c < kBranches; ++c) {
    if (!args.attention.branches[c]) continue;
    NSA_ASSIGN_OR_RETURN(split.k[c], args.cache->k[c].Append(exec, RowsOf(args)));
    NSA_ASSIGN_OR_RETURN(split.v[c], args.cache->v[c].Append(exec, RowsOf(args)));
  }
  return SplitProjections(exec, split);
}

// The same on the CPU, with the angles that all layers share.
absl::Status Split(const Exec& exec, const BlockRowsArgs& args) {
  const NsaLayerConfig& config = args.attention;
  const NsaShape& shape = config.shape;
  const int64_t rows = RowsOf(args), width = ProjectionWidth(config);
  const int64_t q_width = int64_t{shape.n_heads} * shape.d_k;
  const int64_t k_width = int64_t{shape.n_kv_groups} * shape.d_k;
  const int64_t v_width = int64_t{shape.n_kv_groups} * shape.d_v;
  const float* const wide = args.work.wide.as<float>().data();
  float* const q = args.work.q.as<float>().data();
  float* const q_rotated = args.work.q_rotated.as<float>().data();
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(wide + row * width, q_width, q + row * q_width);
    args.rotation->Rotate(row, shape.n_heads, q + row * q_width, q_rotated + row * q_width);
  }
  const float* column = wide + q_width;
  for (const Branch branch : kProjectionOrder) {
    if (!config.has(branch)) continue;
    NSA_ASSIGN_OR_RETURN(const Tensor k_rows, args.cache->k[branch].Append(exec, rows));
    NSA_ASSIGN_OR_RETURN(const Tensor v_rows, args.cache->v[branch].Append(exec, rows));
    float* const k = k_rows.as<float>().data();
    float* const v = v_rows.as<float>().data();
    for (int64_t row = 0; row < rows; ++row) {
      const float* const from = column + row * width;
      args.rotation->Rotate(row, shape.n_kv_groups, from, k + row * k_width);
      std::copy_n(from + k_width, v_width, v + row * v_width);
    }
    column += k_width + v_width;
  }
  return absl::OkStatus();
}

// o ← NSA(h)
absl::Status Attention(const Exec& exec, const BlockRowsArgs& args) {
  const int64_t width = ProjectionWidth(args.attention);
  const NsaLayerParams params = AttentionParams(args.parameters, args.places);
  NSA_RETURN_IF_ERROR(Product(exec, {RowsOf(args), args.config.dim, width}, args.work.h,
                              Weight(args.parameters, args.places.projections), args.work.wide));
  NSA_RETURN_IF_ERROR(exec.backend == Backend::kCuda ? SplitOnGpu(exec, args) : Split(exec, args));
  NSA_RETURN_IF_ERROR(CompressNewBlocks(exec, args.attention, params, args.work.hidden_k,
                                        args.work.hidden_v, args.cache));
  return AttendRows(exec, {.config = args.attention,
                           .params = params,
                           .cache = *args.cache,
                           .work = args.work,
                           .first = args.first,
                           .doc_start = args.doc_start,
                           .keys_read = args.keys_read});
}

}  // namespace

absl::Status BlockRows(const Exec& exec, const BlockRowsArgs& args) {
  const int64_t rows = RowsOf(args), dim = args.config.dim, hidden = args.config.hidden;
  const NsaShape& shape = args.attention.shape;
  const BlockPlaces& p = args.places;
  const DecodeWork& work = args.work;
  const auto weight = [&](const Place& place) { return Weight(args.parameters, place); };
  NSA_RETURN_IF_ERROR(Norm(exec, args, work.x, p.norm1));
  NSA_RETURN_IF_ERROR(Attention(exec, args));
  NSA_RETURN_IF_ERROR(Product(exec, {rows, int64_t{shape.n_heads} * shape.d_v, dim}, work.o,
                              weight(p.out), work.mid, /*add=*/work.x));
  NSA_RETURN_IF_ERROR(Norm(exec, args, work.mid, p.norm2));
  NSA_RETURN_IF_ERROR(Product(exec, {rows, dim, hidden}, work.h, weight(p.fc1), work.u));
  const Tensor u = Prefix(work.u, rows * hidden);
  NSA_RETURN_IF_ERROR(Silu(exec, {.x = u, .y = u}));
  return Product(exec, {rows, hidden, dim}, work.u, weight(p.fc2), work.x, /*add=*/work.mid);
}

absl::Status Product(const Exec& exec, const LinearShape& shape, const ConstTensor& x,
                     const ConstTensor& w, const Tensor& y, const ConstTensor& add) {
  if (exec.backend == Backend::kCuda) {
    // Two numbers of rows, because the matrix library times its algorithms for every new shape. The
    // tensors have kDecodeRows rows; what is computed in those after the last is not used.
    const int64_t rows = shape.rows == 1 ? 1 : kDecodeRows;
    return Linear(exec, {rows, shape.in, shape.out}, {x.data, rows * shape.in, x.dtype}, w,
                  Prefix(y, rows * shape.out),
                  ConstTensor(add.data, add.wanted() ? rows * shape.out : 0, add.dtype));
  }
  const ConstTensor from(x.data, shape.rows * shape.in, x.dtype);
  const ConstTensor plus(add.data, add.wanted() ? shape.rows * shape.out : 0, add.dtype);
  const Tensor to = Prefix(y, shape.rows * shape.out);
  if (shape.rows != 1) return Linear(exec, shape, from, w, to, plus);
  exec.Enter("matmul");
  if (plus.wanted()) std::ranges::copy(plus.as<float>(), to.as<float>().begin());
  cblas_sgemv(CblasRowMajor, CblasNoTrans, static_cast<blasint>(shape.out),
              static_cast<blasint>(shape.in), 1.0f, w.as<float>().data(),
              static_cast<blasint>(shape.in), from.as<float>().data(), 1,
              plus.wanted() ? 1.0f : 0.0f, to.as<float>().data(), 1);
  return absl::OkStatus();
}

}  // namespace nsa::train

#include "worker/train/decode/block_rows.h"

#include <algorithm>
#include <optional>

#include "common/base/status.h"
#include "kernels/nn/bias.h"
#include "kernels/nn/swiglu.h"
#include "kernels/nsa/decode/project_row.h"
#include "kernels/nsa/layer/projections.h"
#include "worker/train/decode/attend_rows.h"
#include "worker/train/decode/linear_rows.h"

namespace nsa::train {
namespace {

ConstTensor Weight(const Arena& arena, const Place& place) {
  return place.size == 0 ? ConstTensor() : arena.weight(place.offset, place.size);
}

int64_t RowsOf(const BlockRowsArgs& args) { return static_cast<int64_t>(args.doc_start.size()); }

// The positions that the kernels of a GPU read.
const Tensor& PositionsOf(const BlockRowsArgs& args) {
  const NsaShape& shape = args.attention.shape;
  return shape.window >= shape.seq_len ? args.work.at_all : args.work.at;
}

// Where the columns of `wide` go on a GPU: q, and the keys and values in the cache.
SplitProjectionsArgs SplitOf(const BlockRowsArgs& args) {
  SplitProjectionsArgs split{.config = args.attention};
  split.config.shape.seq_len = static_cast<int32_t>(RowsOf(args));
  const NsaShape& shape = split.config.shape;
  split.wide = Prefix(args.work.wide, RowsOf(args) * ProjectionWidth(args.attention));
  split.q = Prefix(args.work.q, shape.q_size());
  split.q_rotated = Prefix(args.work.q_rotated, shape.q_size());
  split.at = PositionsOf(args);
  split.norm_weights = HeadNormWeightsOf(args.parameters, args.places);
  for (int c = 0; c < kBranches; ++c) {
    if (!args.attention.branches[c]) continue;
    split.k[c] = args.cache->k[c].memory(RowsOf(args));
    split.v[c] = args.cache->v[c].memory(RowsOf(args));
  }
  return split;
}

// The same on the CPU, with the angles that all layers share.
absl::Status Split(const Exec& exec, const BlockRowsArgs& args) {
  const NsaLayerConfig& config = args.attention;
  const NsaShape& shape = config.shape;
  const int64_t rows = RowsOf(args), width = ProjectionWidth(config);
  const int64_t q_width = int64_t{shape.n_heads} * shape.d_k;
  const int64_t k_width = int64_t{shape.n_kv_groups} * shape.d_k;
  const int64_t v_width = int64_t{shape.n_kv_groups} * shape.d_v;
  const bool turns = config.rope_scale != kNoRotation;
  const HeadNormWeights weights = HeadNormWeightsOf(args.parameters, args.places);
  const auto of = [](const ConstTensor& weight) { return static_cast<const float*>(weight.data); };
  const float* const wide = args.work.wide.as<float>().data();
  float* const q = args.work.q.as<float>().data();
  float* const q_rotated = args.work.q_rotated.as<float>().data();
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(wide + row * width, q_width, q + row * q_width);
    args.rotation->Rotate(row, shape.n_heads, turns, of(weights.q), q + row * q_width,
                          q_rotated + row * q_width);
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
      args.rotation->Rotate(row, shape.n_kv_groups, turns, of(weights.k), from, k + row * k_width);
      std::copy_n(from + k_width, v_width, v + row * v_width);
    }
    column += k_width + v_width;
  }
  return absl::OkStatus();
}

// Projects norm(x), rotates q and the keys, and writes keys and values to the cache.
absl::Status Project(const Exec& exec, const BlockRowsArgs& args) {
  const int64_t width = ProjectionWidth(args.attention), dim = args.config.dim;
  const ConstTensor norm = Weight(args.parameters, args.places.norm1);
  const ConstTensor w = Weight(args.parameters, args.places.projections);
  const ConstTensor bias = Weight(args.parameters, args.places.projection_bias);
  const bool on_gpu = exec.backend == Backend::kCuda;
  if (on_gpu && RowsOf(args) == 1) {
    exec.Enter("project_row");
    return cuda::ProjectRow(exec, {.in = dim,
                                   .x = Prefix(args.work.x, dim),
                                   .norm = norm,
                                   .w = w,
                                   .bias = bias,
                                   .split = SplitOf(args)});
  }
  NSA_RETURN_IF_ERROR(LinearRows(exec, {.shape = {RowsOf(args), dim, width},
                                        .x = args.work.x,
                                        .norm = norm,
                                        .eps = args.attention.norm_eps,
                                        .normalized = args.work.h,
                                        .w = w,
                                        .y = args.work.wide}));
  if (bias.wanted()) {
    NSA_RETURN_IF_ERROR(AddBias(exec, {.rows = RowsOf(args),
                                       .width = width,
                                       .bias = bias,
                                       .y = Prefix(args.work.wide, RowsOf(args) * width)}));
  }
  return on_gpu ? SplitProjections(exec, SplitOf(args)) : Split(exec, args);
}

// Compresses the blocks that the tokens complete.
absl::Status CompressRows(const Exec& exec, const BlockRowsArgs& args,
                          const NsaLayerParams& params) {
  const DecodeWork& work = args.work;
  if (exec.backend == Backend::kCpu || RowsOf(args) > 1) {
    return CompressNewBlocks(exec, args.attention, params, work.hidden_k, work.hidden_v,
                             args.cache);
  }
  if (!args.completes_block) return absl::OkStatus();
  return CompressBlock(exec, args.attention, params, work.hidden_k, work.hidden_v,
                       PositionsOf(args), *args.cache);
}

// o ← NSA(norm(x))
absl::Status Attention(const Exec& exec, const BlockRowsArgs& args) {
  const NsaLayerParams params = AttentionParams(args.parameters, args.places);
  NSA_RETURN_IF_ERROR(Project(exec, args));
  NSA_RETURN_IF_ERROR(CompressRows(exec, args, params));
  return AttendRows(exec, {.config = args.attention,
                           .params = params,
                           .cache = *args.cache,
                           .work = args.work,
                           .at = PositionsOf(args),
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
  NSA_RETURN_IF_ERROR(Attention(exec, args));
  NSA_RETURN_IF_ERROR(LinearRows(exec, {.shape = {rows, int64_t{shape.n_heads} * shape.d_v, dim},
                                        .x = work.o,
                                        .w = weight(p.out),
                                        .add = work.x,
                                        .y = work.mid}));
  const bool swiglu = args.config.swiglu;
  const auto activation =
      swiglu ? std::optional<Activation>() : std::optional<Activation>(args.config.activation);
  NSA_RETURN_IF_ERROR(LinearRows(exec, {.shape = {rows, dim, args.config.mlp_inputs()},
                                        .x = work.mid,
                                        .norm = weight(p.norm2),
                                        .eps = args.attention.norm_eps,
                                        .normalized = work.h,
                                        .w = weight(p.fc1),
                                        .y = work.u,
                                        .activation = activation}));
  if (swiglu) {
    NSA_RETURN_IF_ERROR(Swiglu(exec, {.rows = rows,
                                      .width = hidden,
                                      .x = Prefix(work.u, 2 * rows * hidden),
                                      .y = Prefix(work.units, rows * hidden)}));
  }
  return LinearRows(exec, {.shape = {rows, hidden, dim},
                           .x = swiglu ? work.units : work.u,
                           .w = weight(p.fc2),
                           .add = work.mid,
                           .y = work.x});
}

}  // namespace nsa::train

#include "worker/train/decode/layer_cache.h"

#include <algorithm>

#include "common/base/status.h"
#include "kernels/nsa/compress/compress.h"

namespace nsa::train {
namespace {

struct Rows {
  int64_t capacity, keep;
};

// How many rows of a branch's keys and values are kept.
Rows RowsOf(const NsaLayerConfig& config, Branch branch) {
  const NsaShape& shape = config.shape;
  const int64_t all = shape.seq_len;
  if (branch == kSel) return {all, all};
  // The first of the new tokens sees w − 1 older rows, and a block misses at most l − 1.
  const int64_t keep = std::min<int64_t>(all, (branch == kWin ? shape.window : shape.l) - 1);
  // bf16: on a GPU, where rows that are kept are copied to a place that they do not overlap.
  const int64_t copies = config.dtype == DType::kBf16 ? 2 : 1;
  return {std::min<int64_t>(all, copies * keep + kDecodeRows), keep};
}

struct NewBlocks {
  int64_t first = 0, count = 0;
};

NewBlocks CompletedBlocks(const NsaShape& shape, int64_t blocks, int64_t tokens) {
  const int64_t rows = tokens - blocks * shape.d;
  return {blocks, rows < shape.l ? 0 : (rows - shape.l) / shape.d + 1};
}

// Arguments for `blocks` neighbouring blocks of keys or values; the caller adds x and y.
CompressArgs ArgsOf(const NsaLayerConfig& config, int32_t width, int64_t blocks,
                    const PhiParams& params, const Tensor& hidden) {
  CompressArgs args{.shape = config.shape, .width = width, .params = params};
  args.shape.batch = 1;
  args.shape.seq_len = static_cast<int32_t>((blocks - 1) * config.shape.d + config.shape.l);
  args.phi = config.has(kCmp) ? config.phi : Phi::kAvg;
  const int64_t groups = config.shape.n_kv_groups;
  const int64_t units = args.phi == Phi::kMlp ? blocks * groups * PhiHidden(width) : 0;
  args.hidden = Tensor(hidden.data, units, config.dtype);
  return args;
}

// Compresses blocks of `raw` and appends them to `compressed`.
absl::Status AppendBlocks(const Exec& exec, CompressArgs args, const NewBlocks& blocks,
                          const RowCache& raw, RowCache* compressed) {
  args.x = raw.rows(blocks.first * args.shape.d, args.shape.seq_len);
  NSA_ASSIGN_OR_RETURN(args.y, compressed->Append(exec, blocks.count));
  return Compress(exec, args);
}

}  // namespace

LayerCache::LayerCache(const NsaLayerConfig& config, ActivationArena* arena) {
  const NsaShape& shape = config.shape;
  const int64_t k_width = int64_t{shape.n_kv_groups} * shape.d_k;
  const int64_t v_width = int64_t{shape.n_kv_groups} * shape.d_v;
  for (const Branch branch : kProjectionOrder) {
    if (!config.has(branch)) continue;
    const Rows rows = RowsOf(config, branch);
    k[branch] = RowCache({rows.capacity, rows.keep, k_width, config.dtype}, arena);
    v[branch] = RowCache({rows.capacity, rows.keep, v_width, config.dtype}, arena);
  }
  const int64_t blocks = shape.cmp_blocks();
  if (config.has(kCmp) || config.has(kSel)) {
    k_cmp = RowCache({blocks, blocks, k_width, config.dtype}, arena);
  }
  if (config.has(kCmp)) v_cmp = RowCache({blocks, blocks, v_width, config.dtype}, arena);
}

void LayerCache::Bind(const ActivationArena& arena) {
  for (int c = 0; c < kBranches; ++c) {
    k[c].Bind(arena);
    v[c].Bind(arena);
  }
  k_cmp.Bind(arena);
  v_cmp.Bind(arena);
}

void LayerCache::Clear() {
  for (int c = 0; c < kBranches; ++c) {
    k[c].Clear();
    v[c].Clear();
  }
  k_cmp.Clear();
  v_cmp.Clear();
}

absl::Status LayerCache::Append(const Exec& exec, int64_t rows) {
  for (int c = 0; c < kBranches; ++c) {
    for (RowCache* const cache : {&k[c], &v[c]}) {
      if (cache->wanted()) NSA_RETURN_IF_ERROR(cache->Append(exec, rows).status());
    }
  }
  return absl::OkStatus();
}

absl::Status LayerCache::AppendBlock(const Exec& exec) {
  for (RowCache* const cache : {&k_cmp, &v_cmp}) {
    if (cache->wanted()) NSA_RETURN_IF_ERROR(cache->Append(exec, 1).status());
  }
  return absl::OkStatus();
}

absl::Status CompressNewBlocks(const Exec& exec, const NsaLayerConfig& config,
                               const NsaLayerParams& params, const Tensor& hidden_k,
                               const Tensor& hidden_v, LayerCache* cache) {
  if (!config.has(kCmp) && !config.has(kSel)) return absl::OkStatus();
  const NsaShape& shape = config.shape;
  const RowCache& keys = cache->k[config.has(kCmp) ? kCmp : kSel];
  const NewBlocks blocks = CompletedBlocks(shape, cache->k_cmp.end(), keys.end());
  if (blocks.count == 0) return absl::OkStatus();
  const CompressArgs of_keys = ArgsOf(config, shape.d_k, blocks.count, params.phi_k, hidden_k);
  NSA_RETURN_IF_ERROR(AppendBlocks(exec, of_keys, blocks, keys, &cache->k_cmp));
  if (!config.has(kCmp)) return absl::OkStatus();
  const CompressArgs of_values = ArgsOf(config, shape.d_v, blocks.count, params.phi_v, hidden_v);
  return AppendBlocks(exec, of_values, blocks, cache->v[kCmp], &cache->v_cmp);
}

absl::Status CompressBlock(const Exec& exec, const NsaLayerConfig& config,
                           const NsaLayerParams& params, const Tensor& hidden_k,
                           const Tensor& hidden_v, const ConstTensor& at, const LayerCache& cache) {
  if (!config.has(kCmp) && !config.has(kSel)) return absl::OkStatus();
  const NsaShape& shape = config.shape;
  const Branch source = config.has(kCmp) ? kCmp : kSel;
  const auto args_of = [&](CompressArgs args, const RowCache& raw, const RowCache& compressed) {
    args.x = raw.memory(shape.l), args.y = compressed.memory(1);
    args.at = at, args.cache = source;
    return args;
  };
  const CompressArgs keys =
      args_of(ArgsOf(config, shape.d_k, 1, params.phi_k, hidden_k), cache.k[source], cache.k_cmp);
  if (source == kSel) return Compress(exec, keys);
  return CompressKeysAndValues(
      exec, keys,
      args_of(ArgsOf(config, shape.d_v, 1, params.phi_v, hidden_v), cache.v[kCmp], cache.v_cmp));
}

}  // namespace nsa::train

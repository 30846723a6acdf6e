#include "kernels/nsa/branch/attend.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/status.h"
#include "kernels/check.h"
#include "kernels/cpu_tile.h"

namespace nsa {
namespace {

using cpu::F8;
using cpu::kLanes;
using cpu::kPanel;
using cpu::Load;
using cpu::MatMul;
using cpu::Splat;
using cpu::Store;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Maxima start from a finite value, so that a row of −inf scores gives exp(−inf) = 0 and not NaN.
constexpr float kFirstMax = -1e30f;

// The keys (or values) of one group, transposed to [width, step]. MatMul works on whole panels of
// columns, so `step` has room for one more panel.
struct Transposed {
  std::vector<float> data;
  int64_t step = 0;

  void Set(const float* x, int64_t row_step, int64_t rows, int64_t width) {
    step = cpu::RoundUp(rows, kPanel) + kPanel;
    data.assign(width * step, 0.0f);
    cpu::Transpose(rows, width, x, row_step, data.data(), step);
  }
};

int64_t CountKeys(const std::vector<KeyRange>& ranges) {
  int64_t keys = 0;
  for (const KeyRange& range : ranges) keys += range.end - range.begin;
  return keys;
}

// h rows over the keys of one query, with room for whole panels after the last key.
struct Rows {
  std::vector<float> data;
  int64_t step = 0;

  void Reserve(int64_t heads, int64_t keys) {
    step = cpu::RoundUp(keys, kPanel) + kPanel;
    if (static_cast<int64_t>(data.size()) < heads * step) data.resize(heads * step);
  }
  float* row(int64_t a) { return data.data() + a * step; }
};

// out[a, j] = x[a,:]·y_j over all keys of the ranges, side by side.
void DotProducts(const float* x, int64_t heads, int64_t width, const Transposed& y,
                 const std::vector<KeyRange>& ranges, Rows* out) {
  int64_t at = 0;
  for (const KeyRange& range : ranges) {
    // The next range overwrites the columns that the last panel has too many.
    MatMul<false>(heads, range.end - range.begin, width, {x, width, 1}, y.data.data() + range.begin,
                  y.step, out->data.data() + at, out->step);
    at += range.end - range.begin;
  }
}

// y[a,:] += Σ_j p[a, j] x_j over all keys of the ranges.
void WeightedSum(const Rows& p, int64_t heads, int64_t width, const float* x, int64_t x_step,
                 const std::vector<KeyRange>& ranges, float* y) {
  int64_t at = 0;
  for (const KeyRange& range : ranges) {
    MatMul<true>(heads, width, range.end - range.begin, {p.data.data() + at, p.step, 1},
                 x + range.begin * x_step, x_step, y, width);
    at += range.end - range.begin;
  }
}

// y_j += Σ_a p[a, j] x[a,:] for all keys of the ranges.
void AddOuterProduct(const Rows& p, int64_t heads, int64_t width, const float* x,
                     const std::vector<KeyRange>& ranges, float* y, int64_t y_step) {
  int64_t at = 0;
  for (const KeyRange& range : ranges) {
    MatMul<true>(range.end - range.begin, width, heads, {p.data.data() + at, 1, p.step}, x, width,
                 y + range.begin * y_step, y_step);
    at += range.end - range.begin;
  }
}

float MaxOf(F8 x) {
  float max = x[0];
  for (int i = 1; i < kLanes; ++i) max = x[i] > max ? x[i] : max;
  return max;
}

float SumOf(F8 x) { return ((x[0] + x[4]) + (x[1] + x[5])) + ((x[2] + x[6]) + (x[3] + x[7])); }

// Fills the rest of a row's last vector with −inf, whose exponential is 0.
void PadRow(float* s, int64_t keys) {
  for (int64_t j = keys; j < cpu::RoundUp(keys, kLanes); ++j) s[j] = -kInfinity;
}

struct Softmax {
  float max = kFirstMax;
  float sum = 0;
};

// s ← exp(scale·s − max), not yet divided by the sum.
Softmax Exponentiate(float* s, int64_t keys, float scale) {
  PadRow(s, keys);
  F8 max = Splat(kFirstMax);
  for (int64_t j = 0; j < keys; j += kLanes) {
    const F8 x = Load(s + j) * scale;
    max = x > max ? x : max;
  }
  Softmax result{.max = MaxOf(max)};
  F8 sum = Splat(0);
  for (int64_t j = 0; j < keys; j += kLanes) {
    const F8 p = cpu::Exp(Load(s + j) * scale - result.max);
    Store(s + j, p);
    sum += p;
  }
  result.sum = SumOf(sum);
  return result;
}

const float* Floats(const ConstTensor& tensor) { return static_cast<const float*>(tensor.data); }
float* Floats(const Tensor& tensor) { return static_cast<float*>(tensor.data); }

struct ForwardScratch {
  float scale = 0;
  Transposed k;
  Rows s;
  std::vector<KeyRange> ranges;
};

// Forward of the h heads of one group at one token.
void ForwardRow(const BranchArgs& args, int64_t row, const float* v, ForwardScratch* scratch) {
  const NsaShape& shape = args.shape;
  const int64_t h = shape.heads_per_group();
  const int64_t keys = CountKeys(scratch->ranges);
  float* o = Floats(args.o) + row * shape.d_v;
  float* lse = Floats(args.lse) + row;
  std::fill(o, o + h * shape.d_v, 0.0f);
  std::fill(lse, lse + h, kInfinity);
  if (keys == 0) return;
  scratch->s.Reserve(h, keys);
  DotProducts(Floats(args.q) + row * shape.d_k, h, shape.d_k, scratch->k, scratch->ranges,
              &scratch->s);
  float inverse[16];
  for (int64_t a = 0; a < h; ++a) {
    const Softmax softmax = Exponentiate(scratch->s.row(a), keys, scratch->scale);
    inverse[a] = softmax.sum == 0 ? 0.0f : 1.0f / softmax.sum;
    lse[a] = softmax.sum == 0 ? kInfinity : softmax.max + std::log(softmax.sum);
  }
  WeightedSum(scratch->s, h, shape.d_v, v, int64_t{1} * shape.n_kv_groups * shape.d_v,
              scratch->ranges, o);
  for (int64_t a = 0; a < h; ++a) {
    for (int64_t c = 0; c < shape.d_v; ++c) o[a * shape.d_v + c] *= inverse[a];
  }
}

void Count(int64_t keys, KeyCounts* counts) {
  counts->sum += keys;
  counts->rows += 1;
  if (keys > counts->max) {
    counts->max = keys;
    counts->at_max = 0;
  }
  if (keys == counts->max) counts->at_max += 1;
}

KeyCounts Total(const std::vector<KeyCounts>& parts) {
  KeyCounts total;
  for (const KeyCounts& part : parts) {
    if (part.max > total.max) total.at_max = 0;
    total.max = std::max(total.max, part.max);
    if (part.max == total.max) total.at_max += part.at_max;
    total.sum += part.sum;
    total.rows += part.rows;
  }
  return total;
}

struct BackwardScratch {
  float scale = 0;
  Transposed k, v;
  Rows p, ds;
  std::vector<KeyRange> ranges;
};

// A (batch row, group) pair, and where it begins in k and v.
struct GroupBase {
  int64_t pair;
  int64_t k, v, k_step, v_step;
};
GroupBase BaseOf(const NsaShape& shape, int32_t n_keys, int64_t b, int64_t g) {
  const int64_t first = b * n_keys * shape.n_kv_groups + g;
  return {b * shape.n_kv_groups + g, first * shape.d_k, first * shape.d_v,
          int64_t{1} * shape.n_kv_groups * shape.d_k, int64_t{1} * shape.n_kv_groups * shape.d_v};
}

// Calls begin(base, &scratch) for each pair and then of_row(base, row, &scratch) for each of its
// tokens, with scratch.ranges filled; `row` is that of the group's first head in [B, S, H]. A pair
// is computed by one thread, tokens upwards. Every thread has its own copy of `initial`.
template <class Scratch, class Begin, class OfRow>
void ForEachPair(const NsaShape& shape, int32_t n_keys, KeyRangesFn ranges, const Scratch& initial,
                 Begin begin, OfRow of_row) {
  const int32_t groups = shape.n_kv_groups, h = shape.heads_per_group();
  const int64_t pairs = int64_t{1} * shape.batch * groups;
#pragma omp parallel
  {
    Scratch scratch = initial;
#pragma omp for schedule(dynamic, 1)
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const int32_t b = static_cast<int32_t>(pair / groups);
      const int32_t g = static_cast<int32_t>(pair % groups);
      const GroupBase base = BaseOf(shape, n_keys, b, g);
      begin(base, &scratch);
      for (int32_t t = 0; t < shape.seq_len; ++t) {
        scratch.ranges.clear();
        ranges(b, g, t, &scratch.ranges);
        of_row(base, (int64_t{b} * shape.seq_len + t) * shape.n_heads + g * h, &scratch);
      }
    }
  }
}

// p ← exp(scale·s − lse) and ds ← p (dp − δ) scale, of one head.
void SoftmaxBackward(int64_t keys, float scale, float lse, float delta, float* p, float* ds) {
  PadRow(p, keys);
  for (int64_t j = 0; j < keys; j += kLanes) {
    const F8 x = cpu::Exp(Load(p + j) * scale - lse);
    Store(p + j, x);
    Store(ds + j, x * (Load(ds + j) - delta) * scale);
  }
}

float DotOf(const float* x, const float* y, int64_t n) {
  F8 sum = Splat(0);
  for (int64_t i = 0; i < n; i += kLanes) sum += Load(x + i) * Load(y + i);
  return SumOf(sum);
}

void BackwardRow(const BranchBackwardArgs& args, int64_t row, const GroupBase& base,
                 BackwardScratch* scratch) {
  const NsaShape& shape = args.shape;
  const int64_t h = shape.heads_per_group();
  const int64_t keys = CountKeys(scratch->ranges);
  const float* q = Floats(args.q) + row * shape.d_k;
  const float* d_o = Floats(args.d_o) + row * shape.d_v;
  float* dq = Floats(args.dq) + row * shape.d_k;
  if (!args.add_to_dq) std::fill(dq, dq + h * shape.d_k, 0.0f);
  if (keys == 0) return;
  scratch->p.Reserve(h, keys);
  scratch->ds.Reserve(h, keys);
  DotProducts(q, h, shape.d_k, scratch->k, scratch->ranges, &scratch->p);
  DotProducts(d_o, h, shape.d_v, scratch->v, scratch->ranges, &scratch->ds);
  for (int64_t a = 0; a < h; ++a) {
    const float delta =
        DotOf(d_o + a * shape.d_v, Floats(args.o) + (row + a) * shape.d_v, shape.d_v);
    SoftmaxBackward(keys, scratch->scale, Floats(args.lse)[row + a], delta, scratch->p.row(a),
                    scratch->ds.row(a));
  }
  WeightedSum(scratch->ds, h, shape.d_k, Floats(args.k) + base.k, base.k_step, scratch->ranges, dq);
  AddOuterProduct(scratch->ds, h, shape.d_k, q, scratch->ranges, Floats(args.dk) + base.k,
                  base.k_step);
  AddOuterProduct(scratch->p, h, shape.d_v, d_o, scratch->ranges, Floats(args.dv) + base.v,
                  base.v_step);
}

void ZeroRows(float* x, int64_t rows, int64_t step, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) std::fill(x + r * step, x + r * step + width, 0.0f);
}

}  // namespace

KeyCounts Attend(const BranchArgs& args, int32_t n_keys, KeyRangesFn ranges) {
  const NsaShape& shape = args.shape;
  std::vector<KeyCounts> counts(int64_t{1} * shape.batch * shape.n_kv_groups);
  ForEachPair(
      shape, n_keys, ranges, ForwardScratch{.scale = ScaleOf(shape, args.scale)},
      [&](const GroupBase& base, ForwardScratch* scratch) {
        scratch->k.Set(Floats(args.k) + base.k, base.k_step, n_keys, shape.d_k);
      },
      [&](const GroupBase& base, int64_t row, ForwardScratch* scratch) {
        ForwardRow(args, row, Floats(args.v) + base.v, scratch);
        Count(CountKeys(scratch->ranges), &counts[base.pair]);
      });
  return Total(counts);
}

void AttendBackward(const BranchBackwardArgs& args, int32_t n_keys, KeyRangesFn ranges) {
  const NsaShape& shape = args.shape;
  ForEachPair(
      shape, n_keys, ranges, BackwardScratch{.scale = ScaleOf(shape, args.scale)},
      [&](const GroupBase& base, BackwardScratch* scratch) {
        scratch->k.Set(Floats(args.k) + base.k, base.k_step, n_keys, shape.d_k);
        scratch->v.Set(Floats(args.v) + base.v, base.v_step, n_keys, shape.d_v);
        ZeroRows(Floats(args.dk) + base.k, n_keys, base.k_step, shape.d_k);
        ZeroRows(Floats(args.dv) + base.v, n_keys, base.v_step, shape.d_v);
      },
      [&](const GroupBase& base, int64_t row, BackwardScratch* scratch) {
        BackwardRow(args, row, base, scratch);
      });
}

float ScaleOf(const NsaShape& shape, float scale) {
  return scale != 0 ? scale : 1.0f / std::sqrt(static_cast<float>(shape.d_k));
}

namespace {

int64_t RowsOf(const NsaShape& shape) {
  return int64_t{1} * shape.batch * shape.seq_len * shape.n_heads;
}

// What forward and backward read, without o and lse.
template <class Args>
absl::Status CheckInputs(const Exec& exec, const char* kernel, int64_t n_keys, const Args& args) {
  const NsaShape& shape = args.shape;
  NSA_RETURN_IF_ERROR(shape.Validate());
  const DType type = args.q.dtype;
  NSA_RETURN_IF_ERROR(CheckFloating("q", args.q));
  const int64_t kv = int64_t{1} * shape.batch * n_keys * shape.n_kv_groups;
  NSA_RETURN_IF_ERROR(CheckTensor("q", args.q, shape.q_size(), type, "B·S·H·dk"));
  NSA_RETURN_IF_ERROR(CheckTensor("k", args.k, kv * shape.d_k, type, "B·keys·G·dk"));
  NSA_RETURN_IF_ERROR(CheckTensor("v", args.v, kv * shape.d_v, type, "B·keys·G·dv"));
  NSA_RETURN_IF_ERROR(CheckDocStart(exec, shape, args.doc_start));
  return CheckBackend(exec, kernel, type);
}

// The results of forward.
template <class Args>
absl::Status CheckResults(const Args& args) {
  const int64_t rows = RowsOf(args.shape);
  NSA_RETURN_IF_ERROR(CheckTensor("o", args.o, args.shape.o_size(), args.q.dtype, "B·S·H·dv"));
  return CheckTensor("lse", args.lse, rows, DType::kF32, "B·S·H");
}

// What backward knows of the rows: their statistics, or what these are computed from.
absl::Status CheckRows(const Exec& exec, const BranchBackwardArgs& args) {
  if (!args.stats.wanted() && args.stats.size == 0) return CheckResults(args);
  if (exec.backend != Backend::kCuda) {
    return absl::InvalidArgumentError("stats: given (on CUDA only); pass o and lse");
  }
  return CheckTensor("stats", args.stats, 2 * RowsOf(args.shape), DType::kF32, "B·S·H·2");
}

}  // namespace

absl::Status CheckBranch(const Exec& exec, const char* kernel, int64_t n_keys,
                         const BranchArgs& args) {
  NSA_RETURN_IF_ERROR(CheckInputs(exec, kernel, n_keys, args));
  NSA_RETURN_IF_ERROR(CheckResults(args));
  return CheckOptional("keys_read", args.keys_read, 1, DType::kI64, "1");
}

absl::Status CheckBranch(const Exec& exec, const char* kernel, int64_t n_keys,
                         const BranchBackwardArgs& args) {
  NSA_RETURN_IF_ERROR(CheckInputs(exec, kernel, n_keys, args));
  NSA_RETURN_IF_ERROR(CheckRows(exec, args));
  const DType type = args.q.dtype;
  NSA_RETURN_IF_ERROR(CheckTensor("d_o", args.d_o, args.shape.o_size(), type, "B·S·H·dv"));
  NSA_RETURN_IF_ERROR(CheckTensor("dq", args.dq, args.q.size, type, "B·S·H·dk"));
  NSA_RETURN_IF_ERROR(CheckTensor("dk", args.dk, args.k.size, type, "B·keys·G·dk"));
  return CheckTensor("dv", args.dv, args.v.size, type, "B·keys·G·dv");
}

}  // namespace nsa

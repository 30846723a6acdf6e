#include "kernels/nsa/gate/gate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "kernels/check.h"

namespace nsa {
namespace {

constexpr int kMaxWidth = 192;
constexpr int kMaxHidden = 96;
static_assert(GateHidden(kMaxWidth) == kMaxHidden);
constexpr float kFirstMax = -1e30f;

const float* Floats(const ConstTensor& tensor) { return static_cast<const float*>(tensor.data); }
float* Floats(const Tensor& tensor) { return static_cast<float*>(tensor.data); }

int64_t RowsOf(const NsaShape& shape) {
  return int64_t{1} * shape.batch * shape.seq_len * shape.n_kv_groups;
}

int CountPresent(const std::array<ConstTensor, kBranches>& branches) {
  return static_cast<int>(std::count_if(branches.begin(), branches.end(),
                                        [](const ConstTensor& branch) { return branch.wanted(); }));
}

template <class T>
absl::Status CheckParams(const char* what, const NsaShape& shape, int n_branches, const T& params,
                         DType type) {
  const int64_t hidden = GateHidden(shape.d_k);
  const auto name = [&](const char* part) { return absl::StrFormat("%s.%s", what, part); };
  NSA_RETURN_IF_ERROR(
      CheckTensor(name("fc1_w"), params.fc1_w, hidden * shape.d_k, type, "dk/2·dk"));
  NSA_RETURN_IF_ERROR(CheckTensor(name("fc1_b"), params.fc1_b, hidden, type, "dk/2"));
  NSA_RETURN_IF_ERROR(
      CheckTensor(name("fc2_w"), params.fc2_w, n_branches * hidden, type, "n_b·dk/2"));
  return CheckTensor(name("fc2_b"), params.fc2_b, n_branches, type, "n_b");
}

// The checks that forward and backward share.
template <class Args>
absl::Status CheckCommon(const Args& args, DType type) {
  const NsaShape& shape = args.shape;
  const int n_branches = CountPresent(args.o_branch);
  if (n_branches < 2) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "o_branch: %d branches (from 2 to %d); one branch needs no gate", n_branches, kBranches));
  }
  NSA_RETURN_IF_ERROR(CheckParams("params", shape, n_branches, args.params, type));
  for (const ConstTensor& o : args.o_branch) {
    NSA_RETURN_IF_ERROR(CheckOptional("o_branch", o, shape.o_size(), type, "B·S·H·dv"));
  }
  return CheckTensor("gates", args.gates, RowsOf(shape) * n_branches, DType::kF32, "B·S·G·n_b");
}

absl::Status CheckQ(const GateArgs& args) {
  NSA_RETURN_IF_ERROR(CheckFloating("q", args.q));
  const NsaShape& shape = args.shape;
  const DType type = args.q.dtype;
  if (args.q_stride == 0) return CheckTensor("q", args.q, shape.q_size(), type, "B·S·H·dk");
  const int64_t least = int64_t{1} * shape.n_heads * shape.d_k;
  NSA_RETURN_IF_ERROR(CheckAtLeast("q_stride", args.q_stride, least));
  if (args.q_stride % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("q_stride: %d (must be a multiple of 8); align the rows", args.q_stride));
  }
  return CheckTensor("q", args.q, int64_t{1} * shape.batch * shape.seq_len * args.q_stride, type,
                     "B·S·q_stride");
}

absl::Status Check(const Exec& exec, const GateArgs& args) {
  NSA_RETURN_IF_ERROR(args.shape.Validate());
  NSA_RETURN_IF_ERROR(CheckQ(args));
  NSA_RETURN_IF_ERROR(CheckCommon(args, args.q.dtype));
  NSA_RETURN_IF_ERROR(CheckOptional("q_mean", args.q_mean, RowsOf(args.shape) * args.shape.d_k,
                                    DType::kF32, "B·S·G·dk"));
  NSA_RETURN_IF_ERROR(CheckTensor("o", args.o, args.shape.o_size(), args.q.dtype, "B·S·H·dv"));
  NSA_RETURN_IF_ERROR(
      CheckOptional("gate_stats", args.gate_stats, kGateStats, DType::kF32, "kGateStats"));
  return CheckBackend(exec, "gate", args.q.dtype);
}

// As CheckTensor for a tensor that is there exactly when `present`.
absl::Status CheckPresent(const char* name, const ConstTensor& tensor, bool present, int64_t size,
                          DType type, const char* form) {
  if (!present) return CheckTensor(name, tensor, 0, tensor.dtype, form);
  return CheckTensor(name, tensor, size, type, form);
}

// What backward exchanges with the branches on this backend; nothing of the other backend's.
absl::Status CheckBranches(const Exec& exec, const GateBackwardArgs& args) {
  const NsaShape& shape = args.shape;
  const bool cuda = exec.backend == Backend::kCuda;
  const int64_t rows = RowsOf(shape) * shape.heads_per_group();
  for (size_t c = 0; c < args.o_branch.size(); ++c) {
    const bool present = args.o_branch[c].wanted();
    NSA_RETURN_IF_ERROR(CheckPresent("d_o_branch", args.d_o_branch[c], present && !cuda,
                                     shape.o_size(), args.d_o.dtype, "B·S·H·dv on the CPU"));
    NSA_RETURN_IF_ERROR(
        CheckPresent("lse", args.lse[c], present && cuda, rows, DType::kF32, "B·S·H on CUDA"));
    NSA_RETURN_IF_ERROR(CheckPresent("stats", args.stats[c], present && cuda, 2 * rows, DType::kF32,
                                     "B·S·H·2 on CUDA"));
  }
  return absl::OkStatus();
}

absl::Status Check(const Exec& exec, const GateBackwardArgs& args) {
  const NsaShape& shape = args.shape;
  NSA_RETURN_IF_ERROR(shape.Validate());
  const DType type = args.d_o.dtype;
  NSA_RETURN_IF_ERROR(CheckFloating("d_o", args.d_o));
  NSA_RETURN_IF_ERROR(CheckTensor("d_o", args.d_o, shape.o_size(), type, "B·S·H·dv"));
  NSA_RETURN_IF_ERROR(CheckCommon(args, type));
  NSA_RETURN_IF_ERROR(CheckBackend(exec, "gate_backward", type));
  NSA_RETURN_IF_ERROR(
      CheckTensor("q_mean", args.q_mean, RowsOf(shape) * shape.d_k, DType::kF32, "B·S·G·dk"));
  NSA_RETURN_IF_ERROR(CheckBranches(exec, args));
  NSA_RETURN_IF_ERROR(
      CheckTensor("dq_mean", args.dq_mean, RowsOf(shape) * shape.d_k, type, "B·S·G·dk"));
  return CheckParams("grads", shape, CountPresent(args.o_branch), args.grads, DType::kF32);
}

absl::Status Check(const Exec& exec, const AddMeanGradientArgs& args) {
  const NsaShape& shape = args.shape;
  NSA_RETURN_IF_ERROR(shape.Validate());
  const DType type = args.dq.dtype;
  NSA_RETURN_IF_ERROR(CheckFloating("dq", args.dq));
  NSA_RETURN_IF_ERROR(
      CheckTensor("dq_mean", args.dq_mean, RowsOf(shape) * shape.d_k, type, "B·S·G·dk"));
  NSA_RETURN_IF_ERROR(CheckTensor("dq", args.dq, shape.q_size(), type, "B·S·H·dk"));
  return CheckBackend(exec, "add_mean_gradient", type);
}

// The gate's MLP on one (token, group) row.
struct Mlp {
  int width, hidden, n_branches;
  const float *fc1_w, *fc1_b, *fc2_w, *fc2_b;
};
template <class Args>
Mlp MlpOf(const Args& args) {
  return {.width = args.shape.d_k,
          .hidden = static_cast<int>(GateHidden(args.shape.d_k)),
          .n_branches = CountPresent(args.o_branch),
          .fc1_w = Floats(args.params.fc1_w),
          .fc1_b = Floats(args.params.fc1_b),
          .fc2_w = Floats(args.params.fc2_w),
          .fc2_b = Floats(args.params.fc2_b)};
}

// Intermediate values of a row's gate.
struct Row {
  const float* x;            // mean of q over the heads
  float before[kMaxHidden];  // output of fc1
  float act[kMaxHidden];     // silu(before)
};

void MeanOverHeads(const float* q, int heads, int width, float* x) {
  std::copy(q, q + width, x);
  for (int a = 1; a < heads; ++a) {
    for (int c = 0; c < width; ++c) x[c] += q[a * width + c];
  }
  const float inverse = 1.0f / static_cast<float>(heads);
  for (int c = 0; c < width; ++c) x[c] *= inverse;
}

// fc1 and silu of row->x.
void Hidden(const Mlp& mlp, Row* row) {
  for (int i = 0; i < mlp.hidden; ++i) {
    const float* w = mlp.fc1_w + i * mlp.width;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int c = 0; c < mlp.width; ++c) sum += w[c] * row->x[c];
    row->before[i] = sum + mlp.fc1_b[i];
    row->act[i] = row->before[i] / (1.0f + std::exp(-row->before[i]));
  }
}

void Logits(const Mlp& mlp, const Row& row, float* z) {
  for (int c = 0; c < mlp.n_branches; ++c) {
    z[c] = mlp.fc2_b[c];
    for (int i = 0; i < mlp.hidden; ++i) z[c] += mlp.fc2_w[c * mlp.hidden + i] * row.act[i];
  }
}

// z ← softmax(z) or sigmoid(z).
void Activate(GateKind kind, int n, float* z) {
  if (kind == GateKind::kSigmoid) {
    for (int c = 0; c < n; ++c) z[c] = 1.0f / (1.0f + std::exp(-z[c]));
    return;
  }
  float max = kFirstMax, sum = 0;
  for (int c = 0; c < n; ++c) max = std::max(max, z[c]);
  for (int c = 0; c < n; ++c) sum += z[c] = std::exp(z[c] - max);
  for (int c = 0; c < n; ++c) z[c] /= sum;
}

// o = Σ gate_c · o_c over the heads of one group, `size` numbers from `at`.
void Combine(const std::array<ConstTensor, kBranches>& branches, const float* gates, int64_t at,
             int64_t size, float* o) {
  std::fill(o + at, o + at + size, 0.0f);
  for (const ConstTensor& branch : branches) {
    if (!branch.wanted()) continue;
    const float* from = Floats(branch);
    const float gate = *gates++;
    for (int64_t i = at; i < at + size; ++i) o[i] += gate * from[i];
  }
}

void GateRow(const GateArgs& args, const Mlp& mlp, int64_t index) {
  const int h = args.shape.heads_per_group();
  const int64_t first_head = index * h;  // (token · G + g) · h = token · H + g · h
  const int64_t row_width = int64_t{1} * args.shape.n_heads * mlp.width;
  const int64_t stride = args.q_stride == 0 ? row_width : args.q_stride;
  const int64_t token = index / args.shape.n_kv_groups;
  float own[kMaxWidth];
  float* const x = args.q_mean.wanted() ? Floats(args.q_mean) + index * mlp.width : own;
  MeanOverHeads(Floats(args.q) + token * stride + first_head * mlp.width - token * row_width, h,
                mlp.width, x);
  Row row{.x = x};
  Hidden(mlp, &row);
  float* gates = Floats(args.gates) + index * mlp.n_branches;
  Logits(mlp, row, gates);
  Activate(args.kind, mlp.n_branches, gates);
  Combine(args.o_branch, gates, first_head * args.shape.d_v, int64_t{1} * h * args.shape.d_v,
          Floats(args.o));
}

// Statistics of the gates and of the shares gate_c / Σ gate over all rows, in row order.
void StoreStats(const float* gates, int64_t rows,
                const std::array<ConstTensor, kBranches>& branches, float* stats) {
  const int n = CountPresent(branches);
  double entropy_sum = 0, max_sum = 0, share_sum[kBranches] = {}, gate_sum[kBranches] = {};
  double entropy_min = std::log(double{kBranches}), max_max = 0;
  int64_t collapsed = 0;
  for (int64_t row = 0; row < rows; ++row, gates += n) {
    float total = 0;
    for (int c = 0; c < n; ++c) total += gates[c];
    double entropy = 0, max = 0;
    for (int c = 0; c < n; ++c) {
      const double share = total > 0 ? gates[c] / total : 1.0 / n;
      share_sum[c] += share;
      gate_sum[c] += gates[c];
      if (share > 0) entropy -= share * std::log(share);
      max = std::max(max, share);
    }
    entropy_sum += entropy;
    max_sum += max;
    entropy_min = std::min(entropy_min, entropy);
    max_max = std::max(max_max, max);
    collapsed += (entropy < kCollapsedEntropy && max > kCollapsedShare) || total < kCollapsedSum;
  }
  const double count = static_cast<double>(rows);
  stats[0] = static_cast<float>(entropy_sum / count);
  stats[1] = static_cast<float>(entropy_min);
  stats[2] = static_cast<float>(max_sum / count);
  stats[3] = static_cast<float>(max_max);
  stats[4] = static_cast<float>(static_cast<double>(collapsed) / count);
  for (int branch = 0, c = 0; branch < kBranches; ++branch) {
    const bool present = branches[branch].wanted();
    stats[5 + branch] = present ? static_cast<float>(share_sum[c] / count) : 0.0f;
    stats[5 + kBranches + branch] = present ? static_cast<float>(gate_sum[c] / count) : 0.0f;
    c += present ? 1 : 0;
  }
}

// --- backward ---

// Gradients of the four parameters over one chunk of rows, stored one after the other.
struct ChunkGrads {
  std::vector<float> data;
  float *fc1_w, *fc1_b, *fc2_w, *fc2_b;

  explicit ChunkGrads(const Mlp& mlp)
      : data(mlp.hidden * (mlp.width + 1) + mlp.n_branches * (mlp.hidden + 1), 0.0f) {
    fc1_w = data.data();
    fc1_b = fc1_w + mlp.hidden * mlp.width;
    fc2_w = fc1_b + mlp.hidden;
    fc2_b = fc2_w + mlp.n_branches * mlp.hidden;
  }
};

// d gate_c = Σ d_o · o_c, and d o_c = gate_c · d_o.
void CombineBackward(const GateBackwardArgs& args, const float* gates, int64_t at, int64_t size,
                     float* d_gate) {
  const float* d_o = Floats(args.d_o);
  for (int branch = 0, c = 0; branch < kBranches; ++branch) {
    if (!args.o_branch[branch].wanted()) continue;
    const float* o = Floats(args.o_branch[branch]);
    float* d_branch = Floats(args.d_o_branch[branch]);
    const float gate = gates[c];
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = at; i < at + size; ++i) {
      sum += d_o[i] * o[i];
      d_branch[i] = gate * d_o[i];
    }
    d_gate[c++] = sum;
  }
}

// Turns the gradients of the gates into those of the logits z, in place.
void ActivateBackward(GateKind kind, int n, const float* gates, float* d) {
  if (kind == GateKind::kSigmoid) {
    for (int c = 0; c < n; ++c) d[c] *= gates[c] * (1.0f - gates[c]);
    return;
  }
  float mean = 0;
  for (int c = 0; c < n; ++c) mean += gates[c] * d[c];
  for (int c = 0; c < n; ++c) d[c] = gates[c] * (d[c] - mean);
}

// Backward through fc2, silu and fc1 for one row. Adds to `grads` and overwrites dx.
void MlpBackward(const Mlp& mlp, const Row& row, const float* dz, ChunkGrads* grads, float* dx) {
  std::fill(dx, dx + mlp.width, 0.0f);
  for (int c = 0; c < mlp.n_branches; ++c) grads->fc2_b[c] += dz[c];
  for (int i = 0; i < mlp.hidden; ++i) {
    float d_act = 0;
    for (int c = 0; c < mlp.n_branches; ++c) {
      d_act += dz[c] * mlp.fc2_w[c * mlp.hidden + i];
      grads->fc2_w[c * mlp.hidden + i] += dz[c] * row.act[i];
    }
    const float sigmoid = 1.0f / (1.0f + std::exp(-row.before[i]));
    const float d_before = d_act * sigmoid * (1.0f + row.before[i] * (1.0f - sigmoid));
    grads->fc1_b[i] += d_before;
    float* d_w = grads->fc1_w + i * mlp.width;
    const float* w = mlp.fc1_w + i * mlp.width;
    for (int c = 0; c < mlp.width; ++c) {
      d_w[c] += d_before * row.x[c];
      dx[c] += d_before * w[c];
    }
  }
}

void GateBackwardRow(const GateBackwardArgs& args, const Mlp& mlp, int64_t index,
                     ChunkGrads* grads) {
  const int h = args.shape.heads_per_group();
  const int64_t first_head = index * h;
  const float* gates = Floats(args.gates) + index * mlp.n_branches;
  Row row{.x = Floats(args.q_mean) + index * mlp.width};
  Hidden(mlp, &row);
  float dz[kBranches];
  CombineBackward(args, gates, first_head * args.shape.d_v, int64_t{1} * h * args.shape.d_v, dz);
  ActivateBackward(args.kind, mlp.n_branches, gates, dz);
  MlpBackward(mlp, row, dz, grads, Floats(args.dq_mean) + index * mlp.width);
}

void AddTo(const Tensor& sum, const float* part) {
  float* out = Floats(sum);
  for (int64_t i = 0; i < sum.size; ++i) out[i] += part[i];
}

// Number of chunks of rows, whatever the number of threads, so that sums have a fixed order.
constexpr int64_t kChunks = 16;

}  // namespace

GateStats ReadGateStats(std::span<const float> values) {
  GateStats stats{.entropy_mean = values[0],
                  .entropy_min = values[1],
                  .max_gate_mean = values[2],
                  .max_gate_max = values[3],
                  .collapse_ratio = values[4]};
  for (int c = 0; c < kBranches; ++c) {
    stats.branch_share[c] = values[5 + c];
    stats.gate_mean[c] = values[5 + kBranches + c];
  }
  return stats;
}

absl::Status Gate(const Exec& exec, const GateArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  exec.Enter("gate");
  if (exec.backend == Backend::kCuda) return cuda::Gate(exec, args);
  const Mlp mlp = MlpOf(args);
  const int64_t rows = RowsOf(args.shape);
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) GateRow(args, mlp, row);
  if (args.gate_stats.wanted()) {
    StoreStats(Floats(args.gates), rows, args.o_branch, Floats(args.gate_stats));
  }
  return absl::OkStatus();
}

absl::Status GateBackward(const Exec& exec, const GateBackwardArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  exec.Enter("gate_backward");
  if (exec.backend == Backend::kCuda) return cuda::GateBackward(exec, args);
  const Mlp mlp = MlpOf(args);
  const int64_t rows = RowsOf(args.shape);
  std::vector<ChunkGrads> chunks;
  chunks.reserve(kChunks);
  for (int64_t chunk = 0; chunk < kChunks; ++chunk) chunks.emplace_back(mlp);
#pragma omp parallel for schedule(static)
  for (int64_t chunk = 0; chunk < kChunks; ++chunk) {
    const int64_t end = rows * (chunk + 1) / kChunks;
    for (int64_t row = rows * chunk / kChunks; row < end; ++row) {
      GateBackwardRow(args, mlp, row, &chunks[chunk]);
    }
  }
  for (const ChunkGrads& chunk : chunks) {
    AddTo(args.grads.fc1_w, chunk.fc1_w);
    AddTo(args.grads.fc1_b, chunk.fc1_b);
    AddTo(args.grads.fc2_w, chunk.fc2_w);
    AddTo(args.grads.fc2_b, chunk.fc2_b);
  }
  return absl::OkStatus();
}

absl::Status AddMeanGradient(const Exec& exec, const AddMeanGradientArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  exec.Enter("add_mean_gradient");
  if (exec.backend == Backend::kCuda) return cuda::AddMeanGradient(exec, args);
  const int64_t rows = RowsOf(args.shape), h = args.shape.heads_per_group(), dk = args.shape.d_k;
  const float* mean = Floats(args.dq_mean);
  float* dq = Floats(args.dq);
  const float share = 1.0f / static_cast<float>(h);
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t a = row * h; a < (row + 1) * h; ++a) {
      for (int64_t c = 0; c < dk; ++c) dq[a * dk + c] += share * mean[row * dk + c];
    }
  }
  return absl::OkStatus();
}

}  // namespace nsa

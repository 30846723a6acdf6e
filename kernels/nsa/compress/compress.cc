#include "kernels/nsa/compress/compress.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "kernels/check.h"
#include "kernels/cpu_tile.h"

namespace nsa {
namespace {

using cpu::MatMul;

// Sizes of x and y. The row of token t and group g in batch row b is at ((b·S + t)·G + g)·width.
struct Plan {
  int64_t batch, seq_len, blocks, groups, l, d, width, m;
  int64_t x_size() const { return batch * seq_len * groups * width; }
  int64_t y_size() const { return batch * blocks * groups * width; }
  int64_t hidden_size() const { return batch * blocks * groups * m; }
  int64_t pairs() const { return batch * groups; }
};
Plan PlanOf(const NsaShape& shape, int32_t width) {
  return {shape.batch, shape.seq_len, shape.cmp_blocks(), shape.n_kv_groups,
          shape.l,     shape.d,       int64_t{1} * width, PhiHidden(width)};
}

absl::Status CheckWidth(const NsaShape& shape, int32_t width) {
  NSA_RETURN_IF_ERROR(shape.Validate());
  if (width == shape.d_k || width == shape.d_v) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "width: %d (d_k %d or d_v %d); give the width of x", width, shape.d_k, shape.d_v));
}

template <class T>
absl::Status CheckPhi(const char* what, const Plan& plan, const T& phi, DType type) {
  const PhiSizes sizes = PhiSizesOf(plan.l, plan.width);
  const auto name = [&](const char* part) { return absl::StrFormat("%s.%s", what, part); };
  NSA_RETURN_IF_ERROR(CheckTensor(name("pe"), phi.pe, sizes.pe, type, "l·width"));
  NSA_RETURN_IF_ERROR(CheckTensor(name("w1"), phi.w1, sizes.w1, type, "m·l·width"));
  NSA_RETURN_IF_ERROR(CheckTensor(name("b1"), phi.b1, sizes.b1, type, "m"));
  NSA_RETURN_IF_ERROR(CheckTensor(name("w2"), phi.w2, sizes.w2, type, "width·m"));
  return CheckTensor(name("b2"), phi.b2, sizes.b2, type, "width");
}

absl::Status Check(const Exec& exec, const CompressArgs& args) {
  NSA_RETURN_IF_ERROR(CheckWidth(args.shape, args.width));
  const Plan plan = PlanOf(args.shape, args.width);
  const DType type = args.x.dtype;
  NSA_RETURN_IF_ERROR(CheckFloating("x", args.x));
  NSA_RETURN_IF_ERROR(CheckTensor("x", args.x, plan.x_size(), type, "B·S·G·width"));
  NSA_RETURN_IF_ERROR(CheckTensor("y", args.y, plan.y_size(), type, "B·S_cmp·G·width"));
  NSA_RETURN_IF_ERROR(CheckOptional("at", args.at, 1 + kBranches, DType::kI32, "1 + branches"));
  if (args.phi == Phi::kMlp) {
    NSA_RETURN_IF_ERROR(CheckPhi("params", plan, args.params, type));
    NSA_RETURN_IF_ERROR(
        CheckTensor("hidden", args.hidden, plan.hidden_size(), type, "B·S_cmp·G·m"));
  }
  return CheckBackend(exec, "compress", type);
}

absl::Status Check(const Exec& exec, const CompressBackwardArgs& args) {
  NSA_RETURN_IF_ERROR(CheckWidth(args.shape, args.width));
  const Plan plan = PlanOf(args.shape, args.width);
  const DType type = args.dy.dtype;
  NSA_RETURN_IF_ERROR(CheckFloating("dy", args.dy));
  NSA_RETURN_IF_ERROR(CheckTensor("dy", args.dy, plan.y_size(), type, "B·S_cmp·G·width"));
  NSA_RETURN_IF_ERROR(CheckTensor("dx", args.dx, plan.x_size(), type, "B·S·G·width"));
  if (args.phi == Phi::kMlp) {
    NSA_RETURN_IF_ERROR(CheckTensor("x", args.x, plan.x_size(), type, "B·S·G·width"));
    NSA_RETURN_IF_ERROR(CheckPhi("params", plan, args.params, type));
    NSA_RETURN_IF_ERROR(CheckPhi("grads", plan, args.grads, DType::kF32));
    const int64_t hidden = plan.hidden_size();
    NSA_RETURN_IF_ERROR(CheckTensor("hidden", args.hidden, hidden, type, "B·S_cmp·G·m"));
    NSA_RETURN_IF_ERROR(CheckTensor("d_hidden", args.d_hidden, hidden, type, "B·S_cmp·G·m"));
  }
  return CheckBackend(exec, "compress_backward", type);
}

const float* Floats(const ConstTensor& tensor) { return static_cast<const float*>(tensor.data); }
float* Floats(const Tensor& tensor) { return static_cast<float*>(tensor.data); }

float Silu(float x) { return x / (1.0f + std::exp(-x)); }

float SiluGradient(float x) {
  const float sigmoid = 1.0f / (1.0f + std::exp(-x));
  return sigmoid * (1.0f + x * (1.0f - sigmoid));
}

// --- avg ---

void AverageBlock(const Plan& plan, const float* x, float* y) {
  std::fill(y, y + plan.width, 0.0f);
  for (int64_t r = 0; r < plan.l; ++r) {
    const float* token = x + r * plan.groups * plan.width;
    for (int64_t c = 0; c < plan.width; ++c) y[c] += token[c];
  }
  const float inverse = 1.0f / static_cast<float>(plan.l);
  for (int64_t c = 0; c < plan.width; ++c) y[c] *= inverse;
}

void Average(const Plan& plan, const float* x, float* y) {
  const int64_t rows = plan.batch * plan.blocks * plan.groups;
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t g = row % plan.groups;
    const int64_t i = row / plan.groups % plan.blocks;
    const int64_t b = row / plan.groups / plan.blocks;
    const int64_t token = (b * plan.seq_len + i * plan.d) * plan.groups + g;
    AverageBlock(plan, x + token * plan.width, y + row * plan.width);
  }
}

// dx_t = (1/l) Σ dy_i over the blocks i that contain t.
void AverageBackward(const Plan& plan, const float* dy, float* dx) {
  const float inverse = 1.0f / static_cast<float>(plan.l);
  const int64_t row = plan.groups * plan.width;
#pragma omp parallel for collapse(2) schedule(static)
  for (int64_t b = 0; b < plan.batch; ++b) {
    for (int64_t t = 0; t < plan.seq_len; ++t) {
      float* out = dx + (b * plan.seq_len + t) * row;
      std::fill(out, out + row, 0.0f);
      const int64_t first = t < plan.l ? 0 : (t - plan.l) / plan.d + 1;
      const int64_t last = std::min(plan.blocks - 1, t / plan.d);
      for (int64_t i = first; i <= last; ++i) {
        const float* in = dy + (b * plan.blocks + i) * row;
        for (int64_t c = 0; c < row; ++c) out[c] += in[c];
      }
      for (int64_t c = 0; c < row; ++c) out[c] *= inverse;
    }
  }
}

// --- mlp ---

constexpr int64_t kTile = 32;  // blocks whose inputs are gathered and multiplied together

// Returns W [rows, columns] transposed to [columns, rows].
std::vector<float> TransposedCopy(const float* w, int64_t rows, int64_t columns) {
  std::vector<float> out(rows * columns);
  cpu::Transpose(rows, columns, w, columns, out.data(), rows);
  return out;
}

// u[i, r·width + c] = x[(first+i)·d + r, c] + pe[r, c] for `count` blocks of one group.
void GatherInputs(const Plan& plan, const float* x, const float* pe, int64_t first, int64_t count,
                  float* u) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t r = 0; r < plan.l; ++r) {
      const float* token = x + ((first + i) * plan.d + r) * plan.groups * plan.width;
      for (int64_t c = 0; c < plan.width; ++c) *u++ = token[c] + pe[r * plan.width + c];
    }
  }
}

// out[i,:] = bias for `count` rows at distance `step`.
void FillBias(const float* bias, int64_t width, int64_t count, int64_t step, float* out) {
  for (int64_t i = 0; i < count; ++i) std::copy(bias, bias + width, out + i * step);
}

void Mlp(const Plan& plan, const CompressArgs& args) {
  const int64_t in = plan.l * plan.width;
  const std::vector<float> w1 = TransposedCopy(Floats(args.params.w1), plan.m, in);
  const std::vector<float> w2 = TransposedCopy(Floats(args.params.w2), plan.width, plan.m);
  const int64_t tiles = (plan.blocks + kTile - 1) / kTile;
#pragma omp parallel
  {
    std::vector<float> u(kTile * in), act(kTile * plan.m);
#pragma omp for collapse(2) schedule(static)
    for (int64_t pair = 0; pair < plan.pairs(); ++pair) {
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t b = pair / plan.groups, g = pair % plan.groups, first = tile * kTile;
        const int64_t count = std::min(kTile, plan.blocks - first);
        const float* x = Floats(args.x) + (b * plan.seq_len * plan.groups + g) * plan.width;
        const int64_t row = (b * plan.blocks + first) * plan.groups + g;
        float* hidden = Floats(args.hidden) + row * plan.m;
        float* y = Floats(args.y) + row * plan.width;
        GatherInputs(plan, x, Floats(args.params.pe), first, count, u.data());
        FillBias(Floats(args.params.b1), plan.m, count, plan.groups * plan.m, hidden);
        MatMul<true>(count, plan.m, in, {u.data(), in, 1}, w1.data(), plan.m, hidden,
                     plan.groups * plan.m);
        for (int64_t i = 0; i < count * plan.m; ++i) {
          act[i] = Silu(hidden[i / plan.m * plan.groups * plan.m + i % plan.m]);
        }
        FillBias(Floats(args.params.b2), plan.width, count, plan.groups * plan.width, y);
        MatMul<true>(count, plan.width, plan.m, {act.data(), plan.m, 1}, w2.data(), plan.width, y,
                     plan.groups * plan.width);
      }
    }
  }
}

// d_hidden = (dy · W2) ∘ silu'(hidden), row by row.
void HiddenBackward(const Plan& plan, const CompressBackwardArgs& args) {
  const int64_t rows = plan.batch * plan.blocks * plan.groups;
  const float* hidden = Floats(args.hidden);
  float* d_hidden = Floats(args.d_hidden);
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    float* out = d_hidden + row * plan.m;
    MatMul<false>(1, plan.m, plan.width, {Floats(args.dy) + row * plan.width, plan.width, 1},
                  Floats(args.params.w2), plan.m, out, plan.m);
    for (int64_t i = 0; i < plan.m; ++i) out[i] *= SiluGradient(hidden[row * plan.m + i]);
  }
}

// dx[i·d + r] += d_hidden_i · W1_r, blocks in ascending order. One thread per (b, g) pair.
void InputBackward(const Plan& plan, const CompressBackwardArgs& args) {
  const int64_t in = plan.l * plan.width;
#pragma omp parallel
  {
    std::vector<float> du(kTile * in);
#pragma omp for schedule(static)
    for (int64_t pair = 0; pair < plan.pairs(); ++pair) {
      const int64_t b = pair / plan.groups, g = pair % plan.groups;
      const int64_t step = plan.groups * plan.width;
      float* dx = Floats(args.dx) + (b * plan.seq_len * plan.groups + g) * plan.width;
      for (int64_t t = 0; t < plan.seq_len; ++t) {
        std::fill(dx + t * step, dx + t * step + plan.width, 0.0f);
      }
      for (int64_t first = 0; first < plan.blocks; first += kTile) {
        const int64_t count = std::min(kTile, plan.blocks - first);
        const int64_t row = (b * plan.blocks + first) * plan.groups + g;
        MatMul<false>(count, in, plan.m,
                      {Floats(args.d_hidden) + row * plan.m, plan.groups * plan.m, 1},
                      Floats(args.params.w1), in, du.data(), in);
        for (int64_t i = 0; i < count; ++i) {
          for (int64_t r = 0; r < plan.l; ++r) {
            float* out = dx + ((first + i) * plan.d + r) * step;
            const float* from = du.data() + i * in + r * plan.width;
            for (int64_t c = 0; c < plan.width; ++c) out[c] += from[c];
          }
        }
      }
    }
  }
}

// dW1_r += Σ_i d_hidden_iᵀ · (x[i·d + r] + pe_r) and dpe_r += W1_rᵀ Σ_i d_hidden_i. Each r is
// computed by one thread.
void InputParameterBackward(const Plan& plan, const CompressBackwardArgs& args,
                            const std::vector<float>& d_hidden_sum) {
  const int64_t in = plan.l * plan.width;
#pragma omp parallel
  {
    std::vector<float> u(plan.blocks * plan.width);
#pragma omp for schedule(static)
    for (int64_t r = 0; r < plan.l; ++r) {
      const float* pe = Floats(args.params.pe) + r * plan.width;
      for (int64_t pair = 0; pair < plan.pairs(); ++pair) {
        const int64_t b = pair / plan.groups, g = pair % plan.groups;
        const float* x = Floats(args.x) + (b * plan.seq_len * plan.groups + g) * plan.width;
        for (int64_t i = 0; i < plan.blocks; ++i) {
          const float* token = x + (i * plan.d + r) * plan.groups * plan.width;
          for (int64_t c = 0; c < plan.width; ++c) u[i * plan.width + c] = token[c] + pe[c];
        }
        const int64_t row = b * plan.blocks * plan.groups + g;
        MatMul<true>(plan.m, plan.width, plan.blocks,
                     {Floats(args.d_hidden) + row * plan.m, 1, plan.groups * plan.m}, u.data(),
                     plan.width, Floats(args.grads.w1) + r * plan.width, in);
      }
      MatMul<true>(1, plan.width, plan.m, {d_hidden_sum.data(), plan.m, 1},
                   Floats(args.params.w1) + r * plan.width, in,
                   Floats(args.grads.pe) + r * plan.width, plan.width);
    }
  }
}

// out[c] += Σ_rows x[row, c], in row order.
void AddColumnSums(const float* x, int64_t rows, int64_t width, float* out) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < width; ++c) out[c] += x[row * width + c];
  }
}

void MlpBackward(const Plan& plan, const CompressBackwardArgs& args) {
  const int64_t rows = plan.batch * plan.blocks * plan.groups;
  HiddenBackward(plan, args);
  InputBackward(plan, args);
  std::vector<float> d_hidden_sum(plan.m, 0.0f), act(rows * plan.m);
  AddColumnSums(Floats(args.d_hidden), rows, plan.m, d_hidden_sum.data());
  InputParameterBackward(plan, args, d_hidden_sum);
  for (int64_t i = 0; i < plan.m; ++i) Floats(args.grads.b1)[i] += d_hidden_sum[i];
  for (int64_t i = 0; i < rows * plan.m; ++i) act[i] = Silu(Floats(args.hidden)[i]);
  // dW2 += dyᵀ · silu(hidden), db2 += Σ dy.
  MatMul<true>(plan.width, plan.m, rows, {Floats(args.dy), 1, plan.width}, act.data(), plan.m,
               Floats(args.grads.w2), plan.m);
  AddColumnSums(Floats(args.dy), rows, plan.width, Floats(args.grads.b2));
}

bool Equal(const NsaShape& a, const NsaShape& b) {
  const auto fields = [](const NsaShape& s) {
    return std::tie(s.batch, s.seq_len, s.n_heads, s.n_kv_groups, s.d_k, s.d_v, s.l, s.d, s.l_sel,
                    s.n_sel, s.window);
  };
  return fields(a) == fields(b);
}

// Keys and values must be those of one layer.
template <class Args>
absl::Status CheckBoth(const Exec& exec, const Args& keys, const Args& values) {
  NSA_RETURN_IF_ERROR(Check(exec, keys));
  NSA_RETURN_IF_ERROR(Check(exec, values));
  if (Equal(keys.shape, values.shape) && keys.phi == values.phi) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "values: shape or φ differs from keys; pass both from the same layer");
}

void OnCpu(const CompressArgs& args) {
  const Plan plan = PlanOf(args.shape, args.width);
  if (args.phi == Phi::kMlp) return Mlp(plan, args);
  Average(plan, Floats(args.x), Floats(args.y));
}

void OnCpu(const CompressBackwardArgs& args) {
  const Plan plan = PlanOf(args.shape, args.width);
  if (args.phi == Phi::kMlp) return MlpBackward(plan, args);
  AverageBackward(plan, Floats(args.dy), Floats(args.dx));
}

}  // namespace

absl::Status Compress(const Exec& exec, const CompressArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  exec.Enter("compress");
  if (exec.backend == Backend::kCuda) return cuda::Compress(exec, args);
  OnCpu(args);
  return absl::OkStatus();
}

absl::Status CompressBackward(const Exec& exec, const CompressBackwardArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  exec.Enter("compress_backward");
  if (exec.backend == Backend::kCuda) return cuda::CompressBackward(exec, args);
  OnCpu(args);
  return absl::OkStatus();
}

absl::Status CompressKeysAndValues(const Exec& exec, const CompressArgs& keys,
                                   const CompressArgs& values) {
  NSA_RETURN_IF_ERROR(CheckBoth(exec, keys, values));
  exec.Enter("compress");
  if (exec.backend == Backend::kCuda) return cuda::CompressKeysAndValues(exec, keys, values);
  OnCpu(keys);
  OnCpu(values);
  return absl::OkStatus();
}

absl::Status CompressKeysAndValuesBackward(const Exec& exec, const CompressBackwardArgs& keys,
                                           const CompressBackwardArgs& values) {
  NSA_RETURN_IF_ERROR(CheckBoth(exec, keys, values));
  exec.Enter("compress_backward");
  if (exec.backend == Backend::kCuda) {
    return cuda::CompressKeysAndValuesBackward(exec, keys, values);
  }
  OnCpu(keys);
  OnCpu(values);
  return absl::OkStatus();
}

}  // namespace nsa

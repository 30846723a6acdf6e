#include "kernels/nsa/layer/projections.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/check.h"
#include "kernels/nn/columns.h"
#include "kernels/nsa/layer/check_branches.h"
#include "kernels/nsa/layer/rotation.h"

namespace nsa {
namespace {

int64_t RowsOf(const NsaShape& shape) { return int64_t{1} * shape.batch * shape.seq_len; }

// The factors of q and of the keys of each present branch.
template <class T>
absl::Status CheckRstd(const NsaLayerConfig& config, const ConstTensor& q_rstd,
                       const std::array<T, kBranches>& k_rstd) {
  const int64_t heads = RowsOf(config.shape) * config.shape.n_heads;
  NSA_RETURN_IF_ERROR(CheckTensor("q_rstd", q_rstd, heads, DType::kF32, "B·S·H"));
  for (int c = 0; c < kBranches; ++c) {
    if (!config.branches[c]) continue;
    NSA_RETURN_IF_ERROR(CheckTensor(absl::StrCat("k_rstd[", c, "]"), k_rstd[c],
                                    RowsOf(config.shape) * config.shape.n_kv_groups, DType::kF32,
                                    "B·S·G"));
  }
  return absl::OkStatus();
}

// The weights of normalized heads.
absl::Status CheckWeights(const NsaLayerConfig& config, const HeadNormWeights& weights) {
  NSA_RETURN_IF_ERROR(
      CheckTensor("norm_weights.q", weights.q, config.shape.d_k, config.dtype, "dk"));
  return CheckTensor("norm_weights.k", weights.k, config.shape.d_k, config.dtype, "dk");
}

// The heads before their weights.
template <class T>
absl::Status CheckUnits(const NsaLayerConfig& config, const ConstTensor& q,
                        const std::array<T, kBranches>& k) {
  NSA_RETURN_IF_ERROR(CheckTensor("q_unit", q, config.shape.q_size(), config.dtype, "B·S·H·dk"));
  return CheckBranches("k_unit", config, k, config.shape.k_size(), "B·S·G·dk");
}

absl::Status Check(const Exec& exec, const SplitProjectionsArgs& args) {
  const NsaLayerConfig& config = args.config;
  const NsaShape& shape = config.shape;
  NSA_RETURN_IF_ERROR(config.Validate());
  NSA_RETURN_IF_ERROR(CheckTensor("wide", args.wide, RowsOf(shape) * ProjectionWidth(config),
                                  config.dtype, "B·S·width"));
  NSA_RETURN_IF_ERROR(CheckOptional("q", args.q, shape.q_size(), config.dtype, "B·S·H·dk"));
  NSA_RETURN_IF_ERROR(
      CheckTensor("q_rotated", args.q_rotated, shape.q_size(), config.dtype, "B·S·H·dk"));
  NSA_RETURN_IF_ERROR(CheckBranches("k", config, args.k, shape.k_size(), "B·S·G·dk"));
  NSA_RETURN_IF_ERROR(CheckBranches("v", config, args.v, shape.v_size(), "B·S·G·dv"));
  if (config.qk_norm && args.q_rstd.wanted()) {
    NSA_RETURN_IF_ERROR(CheckRstd(config, args.q_rstd, args.k_rstd));
  }
  if (config.qk_norm_weights) {
    NSA_RETURN_IF_ERROR(CheckWeights(config, args.norm_weights));
    if (args.q_unit.wanted()) NSA_RETURN_IF_ERROR(CheckUnits(config, args.q_unit, args.k_unit));
  }
  return CheckBackend(exec, "split_projections", config.dtype);
}

absl::Status Check(const Exec& exec, const JoinProjectionsArgs& args) {
  const NsaLayerConfig& config = args.config;
  const NsaShape& shape = config.shape;
  NSA_RETURN_IF_ERROR(config.Validate());
  NSA_RETURN_IF_ERROR(CheckTensor("dq", args.dq, shape.q_size(), config.dtype, "B·S·H·dk"));
  if (config.has_gate()) {
    NSA_RETURN_IF_ERROR(
        CheckTensor("dq_mean", args.dq_mean, shape.k_size(), config.dtype, "B·S·G·dk"));
  }
  NSA_RETURN_IF_ERROR(CheckBranches("dk", config, args.dk, shape.k_size(), "B·S·G·dk"));
  NSA_RETURN_IF_ERROR(CheckBranches("dv", config, args.dv, shape.v_size(), "B·S·G·dv"));
  NSA_RETURN_IF_ERROR(CheckTensor("wide", args.wide, RowsOf(shape) * ProjectionWidth(config),
                                  config.dtype, "B·S·width"));
  if (config.qk_norm_weights) {
    NSA_RETURN_IF_ERROR(CheckWeights(config, args.norm_weights));
    NSA_RETURN_IF_ERROR(CheckUnits(config, args.q_unit, args.k_unit));
    NSA_RETURN_IF_ERROR(CheckTensor("dq_weight", args.dq_weight, shape.d_k, DType::kF32, "dk"));
    NSA_RETURN_IF_ERROR(CheckTensor("dk_weight", args.dk_weight, shape.d_k, DType::kF32, "dk"));
    NSA_RETURN_IF_ERROR(CheckRstd(config, args.q_rstd, args.k_rstd));
  } else if (config.qk_norm) {
    NSA_RETURN_IF_ERROR(
        CheckTensor("q_rotated", args.q_rotated, shape.q_size(), config.dtype, "B·S·H·dk"));
    NSA_RETURN_IF_ERROR(
        CheckBranches("k_rotated", config, args.k_rotated, shape.k_size(), "B·S·G·dk"));
    NSA_RETURN_IF_ERROR(CheckRstd(config, args.q_rstd, args.k_rstd));
  }
  return CheckBackend(exec, "join_projections", config.dtype);
}

// q and the k and v of the present branches, in the order of their columns.
template <class T, class Values>
std::vector<T> Parts(const NsaLayerConfig& config, const T& q,
                     const std::array<Tensor, kBranches>& k,
                     const std::array<Values, kBranches>& v) {
  std::vector<T> parts = {q};
  for (const Branch branch : kProjectionOrder) {
    if (!config.has(branch)) continue;
    parts.push_back(k[branch]);
    parts.push_back(v[branch]);
  }
  return parts;
}

}  // namespace

int64_t ProjectionWidth(const NsaLayerConfig& config) {
  const NsaShape& shape = config.shape;
  return int64_t{shape.n_heads} * shape.d_k +
         int64_t{config.n_branches()} * shape.n_kv_groups * (shape.d_k + shape.d_v);
}

absl::Status SplitProjections(const Exec& exec, const SplitProjectionsArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  const NsaLayerConfig& config = args.config;
  if (exec.backend == Backend::kCuda) {
    exec.Enter("split_projections");
    return cuda::SplitProjections(exec, args);
  }
  const Tensor q = args.q.wanted() ? args.q : args.q_rotated;
  const std::vector<Tensor> parts = Parts<Tensor>(config, q, args.k, args.v);
  NSA_RETURN_IF_ERROR(
      SplitColumns(exec, {.rows = RowsOf(config.shape), .wide = args.wide, .parts = parts}));
  NSA_RETURN_IF_ERROR(Rotate(
      exec, config, config.shape.n_heads, q, args.q_rotated,
      {.rstd = args.q_rstd, .weight = args.norm_weights.q, .unit = args.q_unit}, args.first));
  for (int c = 0; c < kBranches; ++c) {
    if (!config.branches[c]) continue;
    NSA_RETURN_IF_ERROR(
        Rotate(exec, config, config.shape.n_kv_groups, args.k[c], args.k[c],
               {.rstd = args.k_rstd[c], .weight = args.norm_weights.k, .unit = args.k_unit[c]},
               args.first));
  }
  return absl::OkStatus();
}

absl::Status JoinProjections(const Exec& exec, const JoinProjectionsArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  const NsaLayerConfig& config = args.config;
  if (exec.backend == Backend::kCuda) {
    exec.Enter("join_projections");
    return cuda::JoinProjections(exec, args);
  }
  NSA_RETURN_IF_ERROR(RotateBack(exec, config, config.shape.n_heads, args.dq, args.dq,
                                 {.y = args.q_rotated,
                                  .rstd = args.q_rstd,
                                  .weight = args.norm_weights.q,
                                  .unit = args.q_unit,
                                  .dweight = args.dq_weight}));
  for (int c = 0; c < kBranches; ++c) {
    if (!config.branches[c]) continue;
    NSA_RETURN_IF_ERROR(RotateBack(exec, config, config.shape.n_kv_groups, args.dk[c], args.dk[c],
                                   {.y = args.k_rotated[c],
                                    .rstd = args.k_rstd[c],
                                    .weight = args.norm_weights.k,
                                    .unit = args.k_unit[c],
                                    .dweight = args.dk_weight}));
  }
  if (config.has_gate()) {
    NSA_RETURN_IF_ERROR(
        AddMeanGradient(exec, {.shape = config.shape, .dq_mean = args.dq_mean, .dq = args.dq}));
  }
  const std::vector<ConstTensor> parts = Parts<ConstTensor>(config, args.dq, args.dk, args.dv);
  return JoinColumns(exec, {.rows = RowsOf(config.shape), .parts = parts, .wide = args.wide});
}

}  // namespace nsa

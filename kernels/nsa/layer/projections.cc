#include "kernels/nsa/layer/projections.h"

#include <vector>

#include "common/base/status.h"
#include "kernels/check.h"
#include "kernels/nn/columns.h"
#include "kernels/nsa/layer/check_branches.h"
#include "kernels/nsa/layer/rotation.h"

namespace nsa {
namespace {

int64_t RowsOf(const NsaShape& shape) { return int64_t{1} * shape.batch * shape.seq_len; }

absl::Status Check(const Exec& exec, const SplitProjectionsArgs& args) {
  const NsaLayerConfig& config = args.config;
  const NsaShape& shape = config.shape;
  NSA_RETURN_IF_ERROR(config.Validate());
  NSA_RETURN_IF_ERROR(CheckTensor("wide", args.wide, RowsOf(shape) * ProjectionWidth(config),
                                  config.dtype, "B·S·width"));
  NSA_RETURN_IF_ERROR(CheckTensor("q", args.q, shape.q_size(), config.dtype, "B·S·H·dk"));
  NSA_RETURN_IF_ERROR(
      CheckTensor("q_rotated", args.q_rotated, shape.q_size(), config.dtype, "B·S·H·dk"));
  NSA_RETURN_IF_ERROR(CheckBranches("k", config, args.k, shape.k_size(), "B·S·G·dk"));
  NSA_RETURN_IF_ERROR(CheckBranches("v", config, args.v, shape.v_size(), "B·S·G·dv"));
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

absl::Status RotateKeys(const Exec& exec, const NsaLayerConfig& config, bool inverse,
                        const std::array<Tensor, kBranches>& k, int32_t first = 0) {
  for (int c = 0; c < kBranches; ++c) {
    if (!config.branches[c]) continue;
    NSA_RETURN_IF_ERROR(Rotate(exec, config, config.shape.n_kv_groups, inverse, k[c], k[c], first));
  }
  return absl::OkStatus();
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
  const std::vector<Tensor> parts = Parts<Tensor>(config, args.q, args.k, args.v);
  NSA_RETURN_IF_ERROR(
      SplitColumns(exec, {.rows = RowsOf(config.shape), .wide = args.wide, .parts = parts}));
  NSA_RETURN_IF_ERROR(
      Rotate(exec, config, config.shape.n_heads, false, args.q, args.q_rotated, args.first));
  return RotateKeys(exec, config, false, args.k, args.first);
}

absl::Status JoinProjections(const Exec& exec, const JoinProjectionsArgs& args) {
  NSA_RETURN_IF_ERROR(Check(exec, args));
  const NsaLayerConfig& config = args.config;
  if (exec.backend == Backend::kCuda) {
    exec.Enter("join_projections");
    return cuda::JoinProjections(exec, args);
  }
  NSA_RETURN_IF_ERROR(Rotate(exec, config, config.shape.n_heads, true, args.dq, args.dq));
  NSA_RETURN_IF_ERROR(RotateKeys(exec, config, true, args.dk));
  if (config.has_gate()) {
    NSA_RETURN_IF_ERROR(
        AddMeanGradient(exec, {.shape = config.shape, .dq_mean = args.dq_mean, .dq = args.dq}));
  }
  const std::vector<ConstTensor> parts = Parts<ConstTensor>(config, args.dq, args.dk, args.dv);
  return JoinColumns(exec, {.rows = RowsOf(config.shape), .parts = parts, .wide = args.wide});
}

}  // namespace nsa

// The audit of a layer's attention (kernels/nsa/audit/audit.h) from the memory that its forward
// left.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/exec.h"
#include "kernels/nsa/layer/nsa_layer.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa {

struct LayerAudit {
  NsaLayerConfig config;
  ConstTensor doc_start;  // as in forward
  Tensor saved;           // output of forward
  int64_t step = 0;       // chooses the queries

  // Number of sampled queries, and of floats that Enqueue() writes.
  int32_t queries() const;
  int64_t size() const;

  // Writes the kept masses of the selected and the window branch, those that are present, one
  // behind the other. `kept`: fp32 [size()].
  absl::Status Enqueue(const Exec& exec, const Tensor& kept) const;

  // The record of these masses, once they are in host memory.
  v1::AttentionAudit Summarise(std::span<const float> kept) const;
};

}  // namespace nsa

// The audit of a layer's attention (kernels/nsa/audit/audit.h) from the memory that its forward
// left.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/exec.h"
#include "kernels/nsa/layer/nsa_layer.h"
#include "nsa/v1/telemetry.pb.h"

namespace nsa::train {

struct LayerAudit {
  NsaLayerConfig config;
  ConstTensor doc_start;  // as in forward
  Tensor saved;           // output of forward
  int64_t step = 0;       // chooses the queries

  // Floats of device memory that Run() uses for the masses: at most 256 for each head and branch.
  int64_t size() const;

  // Measures the masses that the selected and the window branch keep, those that are present, and
  // what the selection chose, and waits for the device. `memory` is that of B·S·H·dk bf16 elements
  // on it. Where it is too small for the block lists of all queries (size() always fits), fewer
  // queries show what was chosen.
  absl::StatusOr<v1::AttentionAudit> Run(const Exec& exec, void* memory) const;
};

}  // namespace nsa::train

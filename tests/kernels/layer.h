// One NSA layer with random inputs, run by the kernels and by the oracle from the same numbers.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/nsa/layer/nsa_layer.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/oracle.h"

namespace nsa::testing {

struct GateValues {
  std::vector<float> fc1_w, fc1_b, fc2_w, fc2_b;
};
struct PhiValues {
  std::vector<float> pe, w1, b1, w2, b2;
};

inline std::span<float> Span(std::vector<float>& values) { return values; }
inline std::span<const float> Span(const std::vector<float>& values) { return values; }
inline std::span<int32_t> Span(std::vector<int32_t>& values) { return values; }
inline std::span<const int32_t> Span(const std::vector<int32_t>& values) { return values; }

inline PhiParams ParamsOf(const PhiValues& phi) {
  return {Span(phi.pe), Span(phi.w1), Span(phi.b1), Span(phi.w2), Span(phi.b2)};
}
inline GateParams ParamsOf(const GateValues& gate) {
  return {Span(gate.fc1_w), Span(gate.fc1_b), Span(gate.fc2_w), Span(gate.fc2_b)};
}
inline PhiGrads GradsOf(PhiValues& phi) {
  return {Span(phi.pe), Span(phi.w1), Span(phi.b1), Span(phi.w2), Span(phi.b2)};
}
inline GateGrads GradsOf(GateValues& gate) {
  return {Span(gate.fc1_w), Span(gate.fc1_b), Span(gate.fc2_w), Span(gate.fc2_b)};
}

inline PhiValues RandomPhi(const NsaShape& s, int64_t width, uint32_t seed) {
  const PhiSizes sizes = PhiSizesOf(s.l, width);
  const float w1 = 1.0f / std::sqrt(static_cast<float>(s.l * width));
  return {Random(sizes.pe, seed + 1, 0.5f), Random(sizes.w1, seed + 2, 2 * w1),
          Random(sizes.b1, seed + 3, 0.5f),
          Random(sizes.w2, seed + 4, 2.0f / std::sqrt(static_cast<float>(PhiHidden(width)))),
          Random(sizes.b2, seed + 5, 0.5f)};
}
inline GateValues RandomGate(const NsaShape& s, int n_branches, uint32_t seed) {
  const int64_t hidden = GateHidden(s.d_k);
  return {Random(hidden * s.d_k, seed + 1, 0.5f), Random(hidden, seed + 2, 0.5f),
          Random(n_branches * hidden, seed + 3, 0.5f), Random(n_branches, seed + 4, 0.5f)};
}

struct Layer {
  NsaLayerConfig config;
  std::vector<float> q;
  std::array<std::vector<float>, kBranches> k, v;
  GateValues gate;
  PhiValues phi_k, phi_v;
  std::vector<int32_t> doc_start;  // empty: no documents

  NsaLayerParams params() const {
    return {.gate = ParamsOf(gate), .phi_k = ParamsOf(phi_k), .phi_v = ParamsOf(phi_v)};
  }
};

inline Layer RandomLayer(const NsaLayerConfig& config, uint32_t seed) {
  const NsaShape& s = config.shape;
  Layer layer{.config = config, .q = Random(s.q_size(), seed)};
  for (int c = 0; c < kBranches; ++c) {
    if (!config.branches[c]) continue;
    layer.k[c] = Random(s.k_size(), seed + 10 + c);
    layer.v[c] = Random(s.v_size(), seed + 20 + c);
  }
  if (config.has_gate()) layer.gate = RandomGate(s, config.n_branches(), seed + 30);
  if (config.has_phi()) {
    layer.phi_k = RandomPhi(s, s.d_k, seed + 40);
    layer.phi_v = RandomPhi(s, s.d_v, seed + 50);
  }
  return layer;
}

struct ForwardOut {
  std::vector<float> o;
  std::vector<float> saved_memory, workspace;  // fp32, so that they can be filled with NaN
  NsaLayerSaved saved;
  std::array<int64_t, kBranches> keys_read = {-1, -1, -1};
  std::array<int64_t, kSelectionStats> selection = {};
  std::array<float, kGateStats> gate_stats = {};

  std::span<const int32_t> blocks() const { return ConstTensor(saved.blocks).as<int32_t>(); }
};

inline Tensor Bytes(std::vector<float>& memory, int64_t bytes) {
  return {memory.data(), bytes, DType::kU8};
}

inline ForwardOut Forward(const Layer& layer) {
  const NsaLayerConfig& config = layer.config;
  ForwardOut out;
  out.o = Poisoned(config.shape.o_size());
  out.saved_memory = Poisoned(NsaLayerSavedBytes(config) / 4 + 1);
  out.workspace = Poisoned(NsaLayerWorkspaceBytes(config) / 4 + 1);
  NsaLayerArgs args{.config = config,
                    .params = layer.params(),
                    .q = Span(layer.q),
                    .doc_start = Span(layer.doc_start),
                    .saved = Bytes(out.saved_memory, NsaLayerSavedBytes(config)),
                    .workspace = Bytes(out.workspace, NsaLayerWorkspaceBytes(config)),
                    .o = Span(out.o),
                    .keys_read = std::span<int64_t>(out.keys_read)};
  if (config.has_gate()) args.gate_stats = std::span<float>(out.gate_stats);
  if (config.has(kSel)) args.selection_stats = std::span<int64_t>(out.selection);
  for (int c = 0; c < kBranches; ++c) {
    args.k[c] = Span(layer.k[c]);
    args.v[c] = Span(layer.v[c]);
  }
  const absl::Status status = NsaLayer({}, args);
  EXPECT_TRUE(status.ok()) << status << "\n" << config.shape.ToString();
  out.saved = LayoutSaved(config, args.saved);
  return out;
}

struct BackwardOut {
  std::vector<float> dq;
  std::array<std::vector<float>, kBranches> dk, dv;
  GateValues gate;
  PhiValues phi_k, phi_v;
};

// Runs the layer's backward. Parameter gradients start from 0.
inline BackwardOut Backward(const Layer& layer, ForwardOut& forward, std::span<const float> d_o) {
  const NsaLayerConfig& config = layer.config;
  const NsaShape& s = config.shape;
  BackwardOut out{
      .dq = Poisoned(s.q_size()), .gate = layer.gate, .phi_k = layer.phi_k, .phi_v = layer.phi_v};
  for (auto* values : {&out.gate.fc1_w, &out.gate.fc1_b, &out.gate.fc2_w, &out.gate.fc2_b}) {
    std::fill(values->begin(), values->end(), 0.0f);
  }
  for (PhiValues* phi : {&out.phi_k, &out.phi_v}) {
    for (auto* values : {&phi->pe, &phi->w1, &phi->b1, &phi->w2, &phi->b2}) {
      std::fill(values->begin(), values->end(), 0.0f);
    }
  }
  forward.workspace = Poisoned(static_cast<int64_t>(forward.workspace.size()));
  NsaLayerBackwardArgs args{.config = config,
                            .params = layer.params(),
                            .doc_start = Span(layer.doc_start),
                            .o = Span(forward.o),
                            .saved = Bytes(forward.saved_memory, NsaLayerSavedBytes(config)),
                            .workspace = Bytes(forward.workspace, NsaLayerWorkspaceBytes(config)),
                            .d_o = d_o,
                            .dq = Span(out.dq)};
  if (config.has_gate()) args.grads.gate = GradsOf(out.gate);
  if (config.has_phi()) {
    args.grads.phi_k = GradsOf(out.phi_k);
    args.grads.phi_v = GradsOf(out.phi_v);
  }
  for (int c = 0; c < kBranches; ++c) {
    if (!config.branches[c]) continue;
    out.dk[c] = Poisoned(s.k_size());
    out.dv[c] = Poisoned(s.v_size());
    args.v[c] = Span(layer.v[c]);
    args.dk[c] = Span(out.dk[c]);
    args.dv[c] = Span(out.dv[c]);
  }
  const absl::Status status = NsaLayerBackward({}, args);
  EXPECT_TRUE(status.ok()) << status << "\n" << s.ToString();
  return out;
}

inline oracle::Phi ToOracle(const PhiValues& phi) {
  return {Double(phi.pe), Double(phi.w1), Double(phi.b1), Double(phi.w2), Double(phi.b2)};
}
inline oracle::Layer ToOracle(const Layer& layer) {
  oracle::Layer out{.config = layer.config, .q = Double(layer.q)};
  for (int c = 0; c < kBranches; ++c) {
    out.k[c] = Double(layer.k[c]);
    out.v[c] = Double(layer.v[c]);
  }
  out.gate = {Double(layer.gate.fc1_w), Double(layer.gate.fc1_b), Double(layer.gate.fc2_w),
              Double(layer.gate.fc2_b)};
  out.phi_k = ToOracle(layer.phi_k);
  out.phi_v = ToOracle(layer.phi_v);
  out.doc_start = layer.doc_start;
  return out;
}

inline std::vector<int32_t> Ints(std::span<const int32_t> values) {
  return {values.begin(), values.end()};
}

// Documents that begin at the given tokens (and at 0), the same in every row of the batch.
inline std::vector<int32_t> Documents(const NsaShape& s, std::initializer_list<int32_t> starts) {
  std::vector<int32_t> out(int64_t{1} * s.batch * s.seq_len, 0);
  for (int32_t start : starts) {
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int32_t t = start; t < s.seq_len; ++t) out[b * s.seq_len + t] = start;
    }
  }
  return out;
}

}  // namespace nsa::testing

#include "common/export/conversion.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/estimate/estimate.h"
#include "common/estimate/layers.h"
#include "common/job/load.h"
#include "common/nsa/branch.h"
#include "common/nsa/nsa_shape.h"

namespace nsa {
namespace {

constexpr int32_t kRecommendedWindow = 256;
constexpr std::array<const char*, 2> kRecommendedLayers = {"win", "sel"};

bool WindowAlone(const LayerAttention& layer) {
  return layer.branches[kWin] && CountOf(layer.branches) == 1;
}

void AppendLayer(std::string* text, const LayerAttention& layer) {
  absl::StrAppend(text, LayerText(layer));
}

absl::Status CheckDense(const v1::JobSpec& spec) {
  const std::vector<LayerAttention> layers = LayersOf(spec.nsa());
  if (!std::ranges::all_of(layers, WindowAlone)) {
    return absl::InvalidArgumentError(
        absl::StrCat("nsa.layers: [", absl::StrJoin(layers, ", ", AppendLayer),
                     "] (full or win alone, in a model that is converted); take a dense model"));
  }
  if (std::ranges::any_of(layers, &LayerAttention::full) &&
      spec.model().rope_layers() == v1::ROPE_LAYERS_WINDOW) {
    return absl::InvalidArgumentError(
        "model.rope_layers: window with full layers (all, in a model that is converted: converted "
        "layers rotate); take another model");
  }
  if (std::ranges::any_of(layers, [&](const LayerAttention& l) { return IsDense(l, spec); })) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("nsa.w: ", spec.nsa().w(), " (at least train.seq_len = ", spec.train().seq_len(),
                   ", or full layers, in a model that is converted); take a model that reads all "
                   "tokens"));
}

// What `nsa` leaves open. Layers that have a window in the dense model keep it.
void SetDefaults(const v1::JobSpec& dense, v1::NsaSpec* nsa) {
  std::vector<LayerAttention> layers = AllLayersOf(dense.nsa(), dense.model().n_layers());
  const bool windows = std::ranges::any_of(
      layers, [&](const LayerAttention& layer) { return !IsDense(layer, dense); });
  if (!nsa->has_w()) nsa->set_w(windows ? dense.nsa().w() : kRecommendedWindow);
  if (nsa->phi() == v1::PHI_UNSPECIFIED) nsa->set_phi(v1::PHI_AVG);
  if (!nsa->layers().empty() || !nsa->branches().empty()) return;
  if (!windows) {
    for (const char* branches : kRecommendedLayers) nsa->add_layers(branches);
    return;
  }
  for (LayerAttention& layer : layers) {
    if (!IsDense(layer, dense)) continue;
    layer = {};
    layer.branches[kSel] = true;
  }
  SetLayers(std::move(layers), nsa);
}

// A layer that has a window in the dense model reads no more in the converted one.
absl::Status CheckWindows(const v1::JobSpec& dense, const v1::JobSpec& spec) {
  const int n_layers = dense.model().n_layers();
  const std::vector<LayerAttention> from = AllLayersOf(dense.nsa(), n_layers);
  const std::vector<LayerAttention> to = AllLayersOf(spec.nsa(), n_layers);
  for (size_t layer = 0; layer < from.size(); ++layer) {
    if (IsDense(from[layer], dense)) continue;
    if (!WindowAlone(to[layer]) || to[layer].full) {
      return absl::InvalidArgumentError(
          absl::StrCat("nsa.layers: ", LayerText(to[layer]), " in layer ", layer,
                       " (win, which has a window in the model that is converted); name win there, "
                       "or leave nsa.layers out"));
    }
    if (spec.nsa().w() > dense.nsa().w()) {
      return absl::InvalidArgumentError(
          absl::StrCat("nsa.w: ", spec.nsa().w(), " (at most ", dense.nsa().w(),
                       ", the window of the model that is converted); take one within"));
    }
  }
  return absl::OkStatus();
}

// Which gates the branches of a layer begin with; their sum is 1. Measured before the first step: a
// small model that looks values up loses 0.017 nats with a window's share of 0.01 to 0.25 beside
// sel, 0.026 with 0.4 and 0.20 with 0.8; one of text loses 0.003 more with 0.25 than with 0.5. A
// share of cmp costs nothing up to 0.05, and 0.001 at 0.1. The test convert_loss_test.cc has the
// former model.
std::array<double, kBranches> GatesOf(const BranchSet& branches) {
  constexpr double kCmpGate = 0.05, kWinGateBesideSel = 0.25;
  std::array<double, kBranches> gates = {};
  if (branches[kCmp]) gates[kCmp] = kCmpGate;
  if (branches[kWin]) gates[kWin] = branches[kSel] ? kWinGateBesideSel : 1 - gates[kCmp];
  if (branches[kSel]) gates[kSel] = 1 - gates[kCmp] - gates[kWin];
  return gates;
}

std::vector<float> GateBias(const BranchSet& branches, v1::Gate kind) {
  std::vector<float> bias;
  const std::array<double, kBranches> gates = GatesOf(branches);
  for (int branch = 0; branch < kBranches; ++branch) {
    if (!branches[branch]) continue;
    const double gate = gates[branch];
    const double others = kind == v1::GATE_SIGMOID ? 1 - gate : 1;
    bias.push_back(static_cast<float>(std::log(gate / others)));
  }
  return bias;
}

std::vector<float> GateStart(const v1::JobSpec& spec, const BranchSet& branches,
                             absl::string_view part) {
  const int64_t width = spec.model().d_k(), hidden = width / 2;
  if (part == "fc2.bias") return GateBias(branches, spec.nsa().gate());
  if (part == "fc2.weight") return std::vector<float>(CountOf(branches) * hidden);
  if (part == "fc1.bias") return std::vector<float>(hidden);
  std::vector<float> pairs(hidden * width);
  for (int64_t i = 0; i < hidden; ++i) {
    pairs[i * width + 2 * i] = pairs[i * width + 2 * i + 1] = 0.5f;
  }
  return pairs;
}

std::vector<float> PhiStart(int64_t l, int64_t width, absl::string_view part) {
  constexpr double kScale = 0.25;
  constexpr double kZ = 2.39935728, kSilu = 2.19967864, kSlope = 1.09983932;  // at z
  if (part == "position") return std::vector<float>(l * width);
  if (part == "fc1.bias") return std::vector<float>(width, static_cast<float>(kZ));
  if (part == "fc2.bias") {
    return std::vector<float>(width, static_cast<float>(-kSilu / kSlope / kScale));
  }
  const bool mean = part == "fc1.weight";
  const int64_t blocks = mean ? l : 1;
  const double value = mean ? kScale / static_cast<double>(l) : 1 / kScale / kSlope;
  std::vector<float> diagonals(width * blocks * width);
  for (int64_t i = 0; i < width; ++i) {
    for (int64_t r = 0; r < blocks; ++r) {
      diagonals[(i * blocks + r) * width + i] = static_cast<float>(value);
    }
  }
  return diagonals;
}

BranchSet BranchesOfLayer(const v1::NsaSpec& nsa, size_t layer) {
  const std::vector<LayerAttention> turns = LayersOf(nsa);
  return turns[layer % turns.size()].branches;
}

}  // namespace

absl::StatusOr<v1::JobSpec> ConvertedSpec(const v1::JobSpec& dense, const v1::NsaSpec& nsa) {
  NSA_RETURN_IF_ERROR(CheckDense(dense));
  v1::JobSpec spec = dense;
  spec.mutable_model()->clear_rope_layers();  // all layers of a dense model rotate
  v1::NsaSpec& to = *spec.mutable_nsa();
  to = nsa;
  SetDefaults(dense, &to);
  if (const auto problem = FindLayersProblem(to, spec.model().n_layers())) {
    return absl::InvalidArgumentError(
        absl::StrCat(problem->field, ": ", problem->what, "; ", problem->fix));
  }
  ApplyDefaults(&spec);
  NSA_RETURN_IF_ERROR(CheckWindows(dense, spec));
  NSA_RETURN_IF_ERROR(ShapeOf(spec).ValidateOnCuda());
  return spec;
}

TensorStart StartOf(const v1::JobSpec& spec, const std::string& tensor) {
  // blocks.<i>.attn.<part of the attention>
  const std::vector<absl::string_view> path = absl::StrSplit(tensor, absl::MaxSplits('.', 3));
  size_t layer = 0;
  if (path.size() < 4 || path[2] != "attn" || !absl::SimpleAtoi(path[1], &layer))
    return {tensor, {}};
  absl::string_view part = path[3];
  if (absl::ConsumePrefix(&part, "gate.")) {
    return {"", GateStart(spec, BranchesOfLayer(spec.nsa(), layer), part)};
  }
  if (absl::ConsumePrefix(&part, "phi_k.")) {
    return {"", PhiStart(spec.nsa().l(), spec.model().d_k(), part)};
  }
  if (absl::ConsumePrefix(&part, "phi_v.")) {
    return {"", PhiStart(spec.nsa().l(), spec.model().d_v(), part)};
  }
  for (const char* branch : kBranchNames) {
    for (const char* projection : {"W_K_", "W_V_"}) {
      if (!absl::ConsumePrefix(&part, absl::StrCat(projection, branch, "."))) continue;
      return {absl::StrCat("blocks.", layer, ".attn.", projection, kBranchNames[kWin], ".", part),
              {}};
    }
  }
  return {tensor, {}};
}

}  // namespace nsa

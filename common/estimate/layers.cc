#include "common/estimate/layers.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/clean_text.h"

namespace nsa {
namespace {

BranchSet AllBranches() {
  BranchSet all;
  all.fill(true);
  return all;
}

LayerAttention FullLayer() {
  LayerAttention layer{.full = true};
  layer.branches[kWin] = true;
  return layer;
}

BranchSet BranchesOf(const v1::NsaSpec& nsa) {
  static_assert(v1::Branch_MAX == v1::BRANCH_CMP + kBranches - 1);
  if (nsa.branches().empty()) return AllBranches();
  BranchSet branches = {};
  for (const int branch : nsa.branches()) {
    const int place = branch - v1::BRANCH_CMP;
    if (place >= 0 && place < kBranches) branches[place] = true;
  }
  return branches;
}

// kBranches if `word` is no branch.
int BranchOf(absl::string_view word) {
  return static_cast<int>(std::find(kBranchNames.begin(), kBranchNames.end(), word) -
                          kBranchNames.begin());
}

std::string NameOf(int entry) { return absl::StrFormat("nsa.layers[%d]", entry); }

// "what" and "fix" of an error `what; fix`.
LayersProblem ProblemOf(std::string field, const absl::Status& status) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(status.message(), "; ");
  return {std::move(field), parts.first, parts.second};
}

}  // namespace

absl::StatusOr<LayerAttention> ParseLayer(std::string_view entry) {
  const std::string names = absl::StrJoin(kBranchNames, ", ");
  const std::vector<absl::string_view> parts =
      absl::StrSplit(absl::string_view(entry.data(), entry.size()), '+');
  LayerAttention layer;
  for (const absl::string_view part : parts) {
    const absl::string_view word = absl::StripAsciiWhitespace(part);
    if (word.empty()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "no branch where one is expected (%s, joined by +, or %s); name one", names, kFullName));
    }
    if (word == kFullName) {
      if (parts.size() == 1) return FullLayer();
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s beside another branch (alone: it sees what the others see); leave the others out",
          kFullName));
    }
    const int branch = BranchOf(word);
    if (branch == kBranches) {
      return absl::InvalidArgumentError(
          absl::StrFormat("unknown branch '%s' (%s, joined by +, or %s); name one of them",
                          CutText(std::string(word), 64), names, kFullName));
    }
    if (std::exchange(layer.branches[branch], true)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the branch %s is named twice; name it once", word));
    }
  }
  return layer;
}

std::string LayerText(const LayerAttention& layer) {
  if (layer.full) return kFullName;
  std::vector<absl::string_view> names;
  for (int branch = 0; branch < kBranches; ++branch) {
    if (layer.branches[branch]) names.push_back(kBranchNames[branch]);
  }
  return absl::StrJoin(names, "+");
}

std::vector<LayerAttention> LayersOf(const v1::NsaSpec& nsa) {
  if (nsa.layers().empty()) return {LayerAttention{.branches = BranchesOf(nsa)}};
  std::vector<LayerAttention> turns;
  for (const std::string& entry : nsa.layers()) {
    turns.push_back(ParseLayer(entry).value_or(LayerAttention()));
  }
  return turns;
}

std::vector<LayerAttention> AllLayersOf(const v1::NsaSpec& nsa, int n_layers) {
  const std::vector<LayerAttention> turns = LayersOf(nsa);
  std::vector<LayerAttention> layers;
  for (int layer = 0; layer < n_layers; ++layer) layers.push_back(turns[layer % turns.size()]);
  return layers;
}

void SetLayers(std::vector<LayerAttention> layers, v1::NsaSpec* nsa) {
  const auto repeats = [&](size_t period) {
    return std::equal(layers.begin() + static_cast<std::ptrdiff_t>(period), layers.end(),
                      layers.begin());
  };
  size_t period = 1;
  while (!repeats(period)) ++period;
  layers.resize(period);
  nsa->clear_layers();
  for (const LayerAttention& layer : layers) nsa->add_layers(LayerText(layer));
}

bool IsDense(const LayerAttention& layer, const v1::JobSpec& spec) {
  const bool window_alone = layer.branches == FullLayer().branches;
  return layer.full || (window_alone && spec.nsa().w() >= spec.train().seq_len());
}

std::optional<LayersProblem> FindLayersProblem(const v1::NsaSpec& nsa, int n_layers) {
  for (int i = 0; i < nsa.layers_size(); ++i) {
    const absl::StatusOr<LayerAttention> layer = ParseLayer(nsa.layers(i));
    if (!layer.ok()) return ProblemOf(NameOf(i), layer.status());
  }
  if (nsa.layers_size() > std::max(n_layers, 1)) {
    return LayersProblem{
        "nsa.layers",
        absl::StrFormat("%d entries (at most model.n_layers = %d)", nsa.layers_size(), n_layers),
        "remove entries, or raise model.n_layers"};
  }
  if (nsa.layers().empty() || nsa.branches().empty()) return std::nullopt;
  const LayerAttention all = {.branches = BranchesOf(nsa)};
  for (int i = 0; i < nsa.layers_size(); ++i) {
    if (*ParseLayer(nsa.layers(i)) == all) continue;
    return LayersProblem{
        NameOf(i),
        absl::StrFormat("'%s' (nsa.branches is set, too, and says %s for every layer)",
                        nsa.layers(i), LayerText(all)),
        "remove nsa.branches or nsa.layers"};
  }
  return std::nullopt;
}

void NormalizeLayers(int n_layers, v1::NsaSpec* nsa) {
  if (nsa->layers().empty() || FindLayersProblem(*nsa, n_layers)) return;
  const std::vector<LayerAttention> turns = LayersOf(*nsa);
  for (size_t i = 0; i < turns.size(); ++i) {
    nsa->set_layers(static_cast<int>(i), LayerText(turns[i]));
  }
  if (std::count(turns.begin(), turns.end(), turns[0]) < std::ssize(turns)) return;
  nsa->clear_layers();
  if (turns[0].full) nsa->add_layers(kFullName);
  if (turns[0].full || !nsa->branches().empty()) return;
  for (int branch = 0; branch < kBranches; ++branch) {
    if (!turns[0].branches[branch]) continue;
    nsa->add_branches(static_cast<v1::Branch>(v1::BRANCH_CMP + branch));
  }
}

}  // namespace nsa

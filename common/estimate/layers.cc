#include "common/estimate/layers.h"

#include <algorithm>
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

absl::StatusOr<BranchSet> ParseBranches(std::string_view entry) {
  const std::string names = absl::StrJoin(kBranchNames, ", ");
  BranchSet branches = {};
  for (const absl::string_view part :
       absl::StrSplit(absl::string_view(entry.data(), entry.size()), '+')) {
    const absl::string_view word = absl::StripAsciiWhitespace(part);
    if (word.empty()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("no branch where one is expected (%s, joined by +); name one", names));
    }
    const int branch = BranchOf(word);
    if (branch == kBranches) {
      return absl::InvalidArgumentError(
          absl::StrFormat("unknown branch '%s' (%s, joined by +); name one of them",
                          CutText(std::string(word), 64), names));
    }
    if (std::exchange(branches[branch], true)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the branch %s is named twice; name it once", word));
    }
  }
  return branches;
}

std::string BranchesText(const BranchSet& branches) {
  std::vector<absl::string_view> names;
  for (int branch = 0; branch < kBranches; ++branch) {
    if (branches[branch]) names.push_back(kBranchNames[branch]);
  }
  return absl::StrJoin(names, "+");
}

std::vector<BranchSet> LayerBranchesOf(const v1::NsaSpec& nsa) {
  if (nsa.layers().empty()) return {BranchesOf(nsa)};
  std::vector<BranchSet> turns;
  for (const std::string& entry : nsa.layers()) {
    const absl::StatusOr<BranchSet> branches = ParseBranches(entry);
    turns.push_back(branches.ok() ? *branches : BranchSet{});
  }
  return turns;
}

std::optional<LayersProblem> FindLayersProblem(const v1::NsaSpec& nsa, int n_layers) {
  for (int i = 0; i < nsa.layers_size(); ++i) {
    const absl::StatusOr<BranchSet> branches = ParseBranches(nsa.layers(i));
    if (!branches.ok()) return ProblemOf(NameOf(i), branches.status());
  }
  if (nsa.layers_size() > std::max(n_layers, 1)) {
    return LayersProblem{
        "nsa.layers",
        absl::StrFormat("%d entries (at most model.n_layers = %d)", nsa.layers_size(), n_layers),
        "remove entries, or raise model.n_layers"};
  }
  if (nsa.layers().empty() || nsa.branches().empty()) return std::nullopt;
  const BranchSet branches = BranchesOf(nsa);
  for (int i = 0; i < nsa.layers_size(); ++i) {
    if (*ParseBranches(nsa.layers(i)) == branches) continue;
    return LayersProblem{
        NameOf(i),
        absl::StrFormat("'%s' (nsa.branches is set, too, and says %s for every layer)",
                        nsa.layers(i), BranchesText(branches)),
        "remove nsa.branches or nsa.layers"};
  }
  return std::nullopt;
}

void NormalizeLayers(int n_layers, v1::NsaSpec* nsa) {
  if (nsa->layers().empty() || FindLayersProblem(*nsa, n_layers)) return;
  const std::vector<BranchSet> turns = LayerBranchesOf(*nsa);
  for (size_t i = 0; i < turns.size(); ++i) {
    nsa->set_layers(static_cast<int>(i), BranchesText(turns[i]));
  }
  if (std::count(turns.begin(), turns.end(), turns[0]) < std::ssize(turns)) return;
  nsa->clear_layers();
  if (!nsa->branches().empty()) return;
  for (int branch = 0; branch < kBranches; ++branch) {
    if (turns[0][branch]) nsa->add_branches(static_cast<v1::Branch>(v1::BRANCH_CMP + branch));
  }
}

}  // namespace nsa
